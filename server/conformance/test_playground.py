"""The playground and the page of the API, in a real browser: what people see, and that the pages send no request to another origin."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from conftest import KEY, Server, slow_number

DEMO = Path(__file__).parents[1] / "demo"
CHECKPOINTS = Path(__file__).parents[2] / "models/tests/data"
MANUAL = Path(__file__).parents[2] / "docs/JUDGE.md"
QUESTION = "What is 77 - 53?"
# Questions whose numbers are spread: over two peaks, and over hundreds of values.
DIVIDED = "How many stars: decent room, opinions are divided?"
GUESS = "About how many beans are in 8 buckets?"
TICKET = "I was charged twice and want my money back before Friday."
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\x1b[31mred\u202e321\u202c \u0000"
SIZES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
# From the first byte of the page to the picture, in times of loading the page and its scripts: milliseconds
# would measure the machine.
DRAWN_LOADS_MAX = 3


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory):
    """The embedded demo checkpoint as a folder."""
    folder = tmp_path_factory.mktemp("demo")
    with tarfile.open(DEMO / "demo.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return next(folder.rglob("config.json")).parent


@pytest.fixture(scope="session")
def two(demo_folder):
    """Two models, one with a hostile name, without a key."""
    server = Server("--model", f"plain={demo_folder}", "--model", f"<i>{HOSTILE[-12:-1]}</i>={demo_folder}")
    yield server
    server.stop()


# Not for the whole session: Playwright keeps an event loop running, in which other modules could not start
# theirs.
@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium")
    if not program:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """Opens pages. At the end, no page may have sent a request to another origin or failed in a script."""
    contexts, seen, wrong = [], [], []

    def opened(server, path="/", width=1280, scheme="light", wait=True, **options):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: seen.append((server.url, request.url)))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        # Statuses are part of some tests; everything else, such as what the content security policy blocks,
        # is a fault.
        page.on("console", lambda line: line.type == "error" and "status of" not in line.text and "ERR_" not in line.text and wrong.append(line.text))
        page.goto(server.url + path)
        if wait:
            answered(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [url for origin, url in seen if not url.startswith(origin + "/")] == []
    assert wrong == []


def answered(page, panels=1):
    expect(page.locator("article[aria-busy=false]")).to_have_count(panels, timeout=30_000)


def ask(page, question):
    page.get_by_label("Ask for a number").fill(question)
    page.get_by_label("Ask for a number").press("Enter")
    answered(page)


def complete(server, **body):
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def shown(panel):
    """The value that a panel shows, as the server wrote it."""
    text = panel.locator("output.value").get_attribute("data-value")
    return float(text) if text else None


def test_a_question_is_answered_by_text_and_distribution(two, opened):
    page = opened(two)
    ask(page, QUESTION)
    number = complete(two, model="plain", prompt=QUESTION, number=True)["number"]
    text = complete(two, model="plain", prompt=QUESTION, temperature=0, max_tokens=64)["text"]
    panel = page.locator("article.panel")
    assert shown(panel) == pytest.approx(number["value"])
    assert panel.locator(".answer-text").inner_text() == text
    first = panel.get_by_role("list", name="Most probable values").get_by_role("listitem").first
    assert first.inner_text().split()[0].replace("−", "-") == number["support"][0]["text"]
    closed = panel.get_by_role("list", name="Where the probability went").get_by_role("listitem").first
    assert f"{100 * number['mass']['closed']:.1f}%" in closed.inner_text()
    # The picture says in words what it shows.
    label = panel.get_by_role("img").get_attribute("aria-label")
    assert f"{number['support'][0]['text']} with" in label and "90% interval from" in label
    expect(page.locator("#status")).to_contain_text("Answered")


def test_an_example_asks_at_one_click(two, opened):
    page = opened(two)
    example = page.locator(".example").nth(1)
    example.click()
    answered(page)
    assert page.get_by_label("Ask for a number").input_value() == example.inner_text()


def test_all_numbers_of_an_answer_in_dedicated_tokens_are_shown(start, opened):
    server = start("--model", f"r={CHECKPOINTS / 'tiny/regresslm-hf-p10'}")
    page = opened(server)
    # A small model answers its first example.
    prompt = page.get_by_label("Ask for a number").input_value()
    assert prompt.startswith("KBSS\n")
    numbers = [entry["number"] for entry in complete(server, prompt=prompt, number=True)["numbers"]]
    panel = page.locator("article.panel")
    buttons = panel.get_by_role("group", name="Numbers of the answer").get_by_role("button")
    expect(buttons).to_have_count(2)
    for index, number in enumerate(numbers):
        buttons.nth(index).click()
        expect(buttons.nth(index)).to_have_attribute("aria-pressed", "true")
        assert shown(panel) == pytest.approx(number["value"])
        panel.locator("[data-objective='0.9']").click()
        level = next(quantile["value"] for quantile in complete(server, prompt=prompt, number={"quantiles": [0.9]})["numbers"][index]["number"]["quantiles"])
        assert shown(panel) == pytest.approx(level)
        panel.locator("[data-objective='mean']").click()


def test_heads_show_their_number_or_the_probabilities_of_their_labels(start, opened):
    heads = CHECKPOINTS / "heads"
    server = start("--model", f"stars={heads / 'roberta-regression'}", "--model", f"classes={heads / 'bert-classes'}")
    page = opened(server)
    prompt = page.get_by_label("Ask for a number").input_value()
    number = complete(server, model="stars", prompt=prompt, number=True)["number"]
    panel = page.locator("article.panel")
    assert number["method"] == "head" and shown(panel) == pytest.approx(number["value"])
    page.goto(f"{server.url}/#model=classes&prompt={quote(prompt)}")
    page.reload()
    answered(page)
    found = httpx.post(f"{server.url}/classify", json={"model": "classes", "input": prompt}).json()["data"][0]
    assert panel.locator(".answer-text").inner_text() == found["label"]
    rows = panel.get_by_role("list", name="Probabilities of the labels").get_by_role("listitem")
    expect(rows).to_have_count(found["num_classes"])
    assert f"{100 * max(found['probs']):.1f}%" in rows.first.inner_text()
    expect(page.locator("#status")).to_contain_text(f"Answered: {found['label']}")


def test_the_demo_opens_with_an_answer_that_greedy_text_does_not_show(start, opened):
    server = start()
    page = opened(server)
    examples = httpx.get(f"{server.url}/v1/models").json()["data"][0]["examples"]
    assert [example.inner_text() for example in page.locator(".example").all()] == examples
    assert page.get_by_label("Ask for a number").input_value() == examples[0]
    number = complete(server, prompt=examples[0], number=True)["number"]
    peaks = sorted(number["support"][:2], key=lambda peak: peak["value"])
    assert [peak["text"] for peak in peaks] == ["1", "5"] and 2 < shown(page.locator("article.panel")) < 4
    # The model has learned all of them: little of the probability is on other text.
    assert all(complete(server, prompt=example, number=True)["number"]["mass"]["closed"] > 0.99 for example in examples)


def test_the_slider_shows_what_the_server_returns_for_each_objective(two, opened):
    page = opened(two)
    ask(page, DIVIDED)
    slider = page.get_by_role("slider")
    slider.focus()
    slider.press("Home")
    objectives = ["mode", *({"quantile": q} for q in (0.05, 0.1, 0.25)), "median", *({"quantile": q} for q in (0.75, 0.9, 0.95)), "mean"]
    values = []
    for objective in objectives:
        want = complete(two, model="plain", prompt=DIVIDED, number={"objective": objective})["number"]["value"]
        values.append(shown(page.locator("article.panel")))
        assert values[-1] == pytest.approx(want), objective
        assert slider.get_attribute("aria-valuetext")
        slider.press("ArrowRight")
    assert len(set(values)) > 2


def test_estimates_without_bounds_are_those_of_the_server(two, opened):
    page = opened(two)
    estimate = """async ([number, name]) => (await import("/playground/estimates.js")).estimate(number, name).value"""
    cases = 0
    for nodes, sampling in itertools.product((4, 8, 16, 32, 64), (False, True)):
        options = {"nodes_max": nodes, "sampling": sampling, "quantiles": [0.05, 0.25, 0.5, 0.75, 0.95], "support": 50}
        number = complete(two, model="plain", prompt=GUESS, number=options)["number"]
        for name, objective in (("mode", "mode"), ("median", "median"), ("mean", "mean"), ("0.05", {"quantile": 0.05}), ("0.95", {"quantile": 0.95})):
            want = complete(two, model="plain", prompt=GUESS, number={**options, "objective": objective})["number"]
            assert page.evaluate(estimate, [number, name]) == want["value"], (nodes, sampling, name)
            cases += want["reason"] is not None
    assert cases > 2


def test_two_models_stand_side_by_side_on_one_axis(two, opened):
    page = opened(two)
    page.get_by_label("Ask for a number").fill(QUESTION)
    page.get_by_label("versus").select_option(index=1)
    page.locator("#submit").click()
    answered(page, 2)
    panels = page.locator("article.panel")
    boxes = [panels.nth(index).bounding_box() for index in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    panels.nth(0).get_by_role("slider").press("Home")
    assert shown(panels.nth(0)) == shown(panels.nth(1)) is not None
    ticks = [panels.nth(index).locator(".tick text").all_text_contents() for index in (0, 1)]
    assert ticks[0] == ticks[1] != []


def answer_with(page, server, values):
    """Lets the page get a number with these values and probabilities in place of the server's."""

    def answer(route):
        body = json.loads(route.request.post_data)
        if "number" not in body:
            return route.continue_()
        choice = complete(server, model="plain", prompt=QUESTION, number=body["number"])
        number, ordered = choice["number"], [value for value, _ in values]
        low, middle, high = ordered[0], ordered[len(ordered) // 2], ordered[-1]
        number["support"] = [{"value": value, "text": str(value), "probability": share} for value, share in values]
        number |= {"value": middle, "trimmed_mean": middle, "median": middle, "mode": middle, "nodes": 1, "forward_passes": 1}
        number["quantiles"] = [{"q": point["q"], "value": low if point["q"] < 0.5 else high} for point in number["quantiles"]]
        number["bounds"] |= {"trimmed_mean": [low, high]}
        return route.fulfill(json={"choices": [choice]})

    page.route("**/v1/completions", answer)


@pytest.mark.parametrize(
    ("width", "values", "want"),
    [
        # On a phone as well, every rating has its label.
        (390, [(rating, 0.2) for rating in (1, 2, 3, 4, 5)], ["1", "2", "3", "4", "5"]),
        # A gap has a label on both sides.
        (1280, [(3, 0.3), (60_000, 0.3), (480_000, 0.4)], ["3", "60000", "480000"]),
        # Labels of values that are close together differ.
        (1280, [(1234.567891, 0.5), (1234.567892, 0.3), (1234.567893, 0.2)], ["1234.567891", "1234.567892", "1234.567893"]),
        # Between integers there is nothing to label.
        (1280, [(24, 1.0)], ["23", "24", "25"]),
    ],
)
def test_an_axis_labels_the_values_if_they_fit(two, opened, width, values, want):
    page = opened(two, width=width)
    answer_with(page, two, values)
    ask(page, QUESTION)
    assert page.locator(".tick text").all_text_contents() == want


def test_bounds_that_differ_are_shown_with_different_digits_and_one_is_singular(two, opened):
    page = opened(two)
    answer_with(page, two, [(1234.567891, 0.5), (1234.567892, 0.3), (1234.567893, 0.2)])
    ask(page, QUESTION)
    panel = page.locator("article.panel")
    expect(panel.locator(".caption")).to_contain_text("unrounded 1234.567892")
    expect(panel.locator(".caption")).to_contain_text("guaranteed between 1234.567891 and 1234.567893, ")
    expect(panel).to_contain_text("1 decoder position in 1 pass, ")


@pytest.mark.parametrize("width", [320, 390])
def test_all_objectives_have_a_readable_label_on_a_phone(two, opened, width):
    page = opened(two, width=width)
    boxes = [label.bounding_box() for label in page.locator(".stop").all()]
    assert len(boxes) == 9 and None not in boxes
    for index, one in enumerate(boxes):
        for other in boxes[index + 1 :]:
            apart = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert apart or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"], (one, other)


def test_a_judge_gives_the_expected_score_or_says_why_not(two, opened):
    page = opened(two)
    page.locator("#view-judge").click()
    page.get_by_label("Answer to judge").fill("Forty-two.")
    for low, high in ((1, 5), (-400, 400)):
        page.get_by_label("Scale from").fill(str(low))
        page.get_by_label("to", exact=True).fill(str(high))
        page.locator("#submit").click()
        answered(page)
        prompt = page.locator("#judge-prompt").text_content()
        # The rubric of `ntl-eval judge`, as its manual shows it for an item with a reference.
        rubric = next(block for block in MANUAL.read_text().split("```") if block.startswith("\nGrade")).strip("\n")
        rubric = rubric.replace("[Right answer]\n{reference}\n\n", "")
        assert prompt == rubric.format(low=low, high=high, input="What is 12 + 30?", answer="Forty-two.")
        options = {"scale": [low, high]}
        want = complete(two, model="plain", prompt=prompt, number=options)["number"]
        assert shown(page.locator("article.panel")) == (want["value"] and pytest.approx(want["value"]))
        if want["reason"]:
            expect(page.locator(".notice.warning").first).to_contain_text(want["reason"])


def test_a_prefill_begins_the_answer_of_the_judge_and_a_step_refines_its_scale(chatting, opened):
    page = opened(chatting, wait=False)
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("API key").press("Enter")
    expect(page.get_by_label("API key")).to_be_hidden()
    page.locator("#view-judge").click()
    page.get_by_label("The model’s answer begins with").fill("Score: ")
    page.get_by_label("in steps of").fill("0")
    page.locator("#submit").click()
    expect(page.get_by_role("alert")).to_have_text("“Step of the scale” is “0”, which is not a number above 0.")
    page.get_by_label("in steps of").fill("0.5")
    page.locator("#submit").click()
    answered(page)
    text = page.locator("#judge-prompt").text_content()
    assert text.endswith("\nWrite only the score.\nScore: ")
    question = {"role": "user", "content": text.removesuffix("\nScore: ")}
    messages = [question, {"role": "assistant", "content": "Score: "}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False, "number": {"scale": [1, 5, 0.5]}}
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{chatting.url}/v1/chat/completions", json=body, headers=headers, timeout=60).json()
    value = answer["choices"][0]["number"]["value"]
    assert shown(page.locator("article.panel")) == (value and pytest.approx(value))
    page.get_by_role("button", name="Copy as code").click()
    page.get_by_role("button", name="Python").click()
    code = page.locator("#code-text").inner_text()
    assert 'extra_body={"continue_final_message": True, "add_generation_prompt": False, "number": {"scale": [1, 5, 0.5]}}' in code


def decide(page, **questions):
    """Asks questions about a text in the view Decide. Each has a type, and texts by the labels of their fields."""
    page.locator("#view-decide").click()
    page.get_by_label("Text", exact=True).fill(TICKET)
    while page.get_by_role("group", name="Question 2").count():
        page.get_by_role("button", name="Remove question 2").click()
    for number, (name, fields) in enumerate(questions.items(), 1):
        if number > 1:
            page.get_by_role("button", name="Add a question").click()
        form = page.get_by_role("group", name=f"Question {number}")
        form.get_by_label("Type").select_option(fields.pop("type"))
        form.get_by_label("Name").fill(name)
        for label, text in fields.items():
            form.get_by_label(label, exact=label == "Question").fill(text)
    page.locator("#submit").click()


def decisions(server, **body):
    answer = httpx.post(f"{server.url}/v1/decisions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["answers"]


def percent(probability):
    if 0.9995 < probability < 1:
        return "> 99.9%"
    return "< 0.1%" if 0 < probability < 0.0005 else f"{100 * probability:.1f}%"


LEVELS = ["calm", "annoyed", "angry"]
TEAMS = {"billing": "Payments and refunds.", "technical": None, "sales": None}
FORMS = {
    "team": {"type": "choice", "Question": "Which team?", "Options": "billing - Payments and refunds.\n\ntechnical\nsales "},
    "mood": {"type": "score", "Question": "How angry?", "Levels": "\n".join(LEVELS)},
    "urgent": {"type": "predicate", "Question": "Is it urgent?"},
    "days": {"type": "number", "Question": "In how many days?", "Minimum": "0", "Maximum": "30", "Unit": "days"},
}
QUESTIONS = [
    {"type": "choice", "name": "team", "instructions": "Which team?",
     "choices": [{"value": value} | ({"description": text} if text else {}) for value, text in TEAMS.items()]},
    {"type": "score", "name": "mood", "instructions": "How angry?", "levels": [{"label": label} for label in LEVELS]},
    {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
    {"type": "number", "name": "days", "instructions": "In how many days?", "minimum": 0, "maximum": 30, "unit": "days"},
]


def forms():
    return {name: dict(fields) for name, fields in FORMS.items()}


def test_decisions_are_shown_as_the_server_returns_them(two, opened):
    page = opened(two)
    decide(page, **forms())
    answered(page)
    team, mood, urgent, days = decisions(two, model="plain", input=TICKET, questions=QUESTIONS, x_coverage=0.8)
    for answer, rows in [
        (team, {option["value"]: option["probability"] for option in team["probabilities"]}),
        (mood, {f"{level['value']} {level['label']}": level["probability"] for level in mood["probabilities"]}),
        (urgent, {"Yes": urgent["probability"], "No": 1 - urgent["probability"]}),
    ]:
        part = page.get_by_role("region", name=answer["name"])
        shown = part.get_by_role("list", name="Probabilities of the answers").get_by_role("listitem")
        expect(shown).to_have_count(len(rows))
        texts = shown.all_inner_texts()
        for label, probability in rows.items():
            assert [text for text in texts if text.startswith(label) and percent(probability) in text], (label, texts)
        closed = part.get_by_role("list", name="Where the probability went").get_by_role("listitem").first
        assert percent(answer["x_mass"]["closed"]) in closed.inner_text()
    assert page.get_by_role("region", name="team").locator(".value").inner_text() == team["choice"]
    expect(page.get_by_role("region", name="team").locator(".coverage")).to_contain_text(f"80% set: {', '.join(team['x_set']['values'])}")
    expect(page.get_by_role("region", name="mood").locator(".coverage")).to_contain_text("80% interval: ")
    part = page.get_by_role("region", name="days")
    value = part.locator(".value").inner_text().removesuffix(" days")
    assert float(value) == pytest.approx(days["number"], rel=1e-4)
    assert part.get_by_role("img").get_attribute("aria-label").startswith("Distribution of the number: most probable are ")
    quantiles = part.get_by_role("list", name="Quantiles").get_by_role("listitem").all_inner_texts()
    assert [text.split("%")[0] for text in quantiles] == [f"{100 * point['q']:g}" for point in days["distribution"]["quantiles"]]
    expect(page.locator("#status")).to_contain_text(f"Answered: {team['choice']}, ")


def test_decide_begins_with_an_example_that_the_demo_answers(start, opened):
    page = opened(start())
    page.locator("#view-decide").click()
    page.locator("#submit").click()
    answered(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    masses = page.get_by_role("list", name="Where the probability went").all_inner_texts()
    # The model has learned to rate reviews, so it has an opinion about the allowed answers.
    assert len(masses) > 1 and all(float(text.split("%")[0].split()[-1]) > 90 for text in masses), masses


def test_settings_of_decisions_change_the_request(two, opened):
    page = opened(two)
    sent = []
    page.on("request", lambda request: request.url.endswith("/v1/decisions") and sent.append(json.loads(request.post_data)))
    page.locator("#view-decide").click()
    page.get_by_text("Settings").click()
    page.get_by_label("The model writes").select_option("texts")
    page.get_by_label("Orders of the options").fill("2")
    page.get_by_label("Coverage of sets and intervals").select_option("none")
    decide(page, **forms())
    answered(page)
    assert sent == [{"model": "plain", "input": TICKET, "questions": QUESTIONS, "x_read": "texts", "x_orders": 2}]
    expect(page.locator(".coverage")).to_have_count(0)


def test_copied_code_asks_for_the_same_decisions(two, opened):
    page = opened(two)
    decide(page, **forms())
    answered(page)
    want = decisions(two, model="plain", input=TICKET, questions=QUESTIONS, x_coverage=0.8)
    page.get_by_role("button", name="Copy as code").click()
    shell = page.locator("#code-text").inner_text()
    answer = subprocess.run(["bash", "-c", shell.replace("curl ", "curl --silent ", 1)], capture_output=True, text=True, check=True)
    assert without_passes(json.loads(answer.stdout)["answers"]) == without_passes(want)
    page.get_by_role("button", name="Python").click()
    answer = subprocess.run([sys.executable, "-c", page.locator("#code-text").inner_text()], capture_output=True, text=True, check=True)
    printed = answer.stdout.replace("\n}\n{", "\n}\0{").split("\0")
    assert without_passes([json.loads(text) for text in printed]) == without_passes(want)


def without_passes(answers):
    """The number of steps of a distribution depends on how many rows the engine computes together."""
    for answer in answers:
        answer.get("distribution", {}).pop("forward_passes", None)
    return answers


def test_copied_code_of_typesafe_asks_for_the_same_decisions(two, opened):
    python = Path(os.environ.get("NTL_DECISIONS_KIT") or "/nonexistent") / "bin/python"
    if not python.is_file():
        pytest.skip("NTL_DECISIONS_KIT names no directory")
    page = opened(two)
    decide(page, **forms())
    answered(page)
    team, _, urgent, days = decisions(two, model="plain", input=TICKET, questions=QUESTIONS, x_coverage=0.8)
    page.get_by_role("button", name="Copy as code").click()
    page.get_by_role("button", name="typesafe-sdk").click()
    code = page.locator("#code-text").inner_text()
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    shown = dict(line.split(" ", 1) for line in answer.stdout.splitlines())
    assert list(shown) == list(FORMS)
    assert f"'choice': {team['choice']!r}" in shown["team"] and f"'noul': {urgent['probability']}" in shown["urgent"]
    assert f"'number': {days['number']}" in shown["days"]


def test_an_error_of_a_decision_is_shown_at_the_field_that_it_names(two, opened):
    page = opened(two)
    for field, fields, label in [
        ("questions[0].choices", {"type": "choice", "Question": "Which?", "Options": "only"}, "Options"),
        ("questions[0].step", {"type": "number", "Question": "How many?", "Minimum": "", "Step": "2"}, "Step"),
        ("questions[0].minimum", {"type": "number", "Question": "How many?", "Minimum": "9", "Maximum": "1"}, "Minimum"),
    ]:
        decide(page, q=dict(fields))
        error = page.get_by_role("alert")
        expect(error).to_contain_text(f"field {field}")
        expect(error).to_contain_text("status 400")
        node = page.get_by_role("group", name="Question 1").get_by_label(label)
        expect(node).to_be_focused()
        expect(node).to_have_attribute("aria-invalid", "true")
    decide(page, q={"type": "number", "Question": "How many?", "Minimum": "1,5", "Maximum": ""})
    expect(page.get_by_role("alert")).to_contain_text("“Minimum of question 1” is “1,5”, which is not a number.")
    decide(page, q={"type": "predicate", "Question": "Is it urgent?"})
    answered(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("[aria-invalid=true]")).to_have_count(0)


def test_a_link_opens_the_same_decisions_and_an_unusable_one_is_explained(two, opened):
    page = opened(two)
    decide(page, **forms())
    answered(page)
    other = opened(two, page.url.removeprefix(two.url))
    for one, same in zip(page.locator("section.decision").all(), other.locator("section.decision").all(), strict=True):
        assert one.inner_text() == same.inner_text()
    assert other.get_by_role("group", name="Question 4").get_by_label("Unit").input_value() == "days"
    for questions in ("[", '{"type": "choice"}', '[{"type": "rank"}]', '[{"type": "choice", "name": 1}]'):
        wrong = opened(two, f"/#view=decide&questions={quote(questions)}", wait=False)
        expect(wrong.get_by_role("alert")).to_contain_text("which is not a list of questions. The page uses its examples instead.")
        expect(wrong.locator("article.panel")).to_have_count(0)


def test_questions_are_added_and_removed_by_keyboard(two, opened):
    page = opened(two)
    page.locator("#view-decide").click()
    count = page.get_by_role("group", name="Question").count()
    add = page.get_by_role("button", name="Add a question")
    add.focus()
    add.press("Enter")
    last = page.get_by_role("group", name=f"Question {count + 1}")
    expect(last.get_by_label("Type")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("new")
    expect(last.get_by_label("Name")).to_have_value("new")
    first = page.get_by_role("group", name="Question 1")
    first.get_by_role("button", name="Remove question 1").press("Enter")
    expect(page.get_by_role("group", name=f"Question {count}").get_by_label("Name")).to_have_value("new")
    expect(page.get_by_role("group", name="Question 1").get_by_label("Type")).to_be_focused()


def test_two_models_decide_side_by_side_and_hostile_options_stay_text(two, opened):
    page = opened(two)
    page.get_by_label("versus").select_option(index=1)
    decide(page, **{HOSTILE: {"type": "choice", "Question": HOSTILE, "Options": f"{HOSTILE.strip()}\nother"}})
    answered(page, 2)
    assert page.locator("article img, article script, article i").count() == 0
    expect(page.locator("article h3").first).to_contain_text("<img src=x onerror=alert(1)>")
    boxes = [page.locator("article.panel").nth(index).bounding_box() for index in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    texts = [page.locator("section.decision").nth(index).inner_text() for index in (0, 1)]
    assert texts[0] == texts[1] != ""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_refusal_says_that_the_model_writes_no_allowed_answer(two, opened):
    page = opened(two)
    mass = {"closed": 0, "invalid": 1, "open": 0}
    answer = {"model": "plain", "answers": [{"type": "refusal", "name": None, "x_mass": mass}], "usage": {"input_tokens": 1}}
    page.route("**/v1/decisions", lambda route: route.fulfill(json=answer))
    decide(page, q={"type": "predicate", "Question": "Is it urgent?"})
    answered(page)
    part = page.locator("section.decision")
    expect(part).to_contain_text("The model writes none of the allowed answers.")
    expect(part.get_by_role("list", name="Where the probability went")).to_contain_text("closed 0.0% allowed answers")


def test_tokens_show_their_alternatives_by_mouse_and_keyboard(two, opened):
    page = opened(two)
    ask(page, QUESTION)
    tokens = page.get_by_role("group", name="Tokens").get_by_role("button")
    logprobs = complete(two, model="plain", prompt=QUESTION, temperature=0, logprobs=8, max_tokens=64)["logprobs"]
    expect(tokens).to_have_count(len(logprobs["tokens"]))
    tokens.first.click()
    tokens.first.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(tokens.nth(1)).to_have_attribute("aria-pressed", "true")
    rows = page.get_by_role("list", name="Most probable tokens at this place").get_by_role("listitem")
    expect(rows).to_have_count(len(logprobs["top_logprobs"][1]))


def test_a_link_opens_the_same_answer(two, opened):
    page = opened(two)
    ask(page, QUESTION)
    page.get_by_role("slider").press("Home")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    other = opened(two, link.removeprefix(two.url))
    assert shown(other.locator("article.panel")) == shown(page.locator("article.panel"))
    assert other.get_by_label("Ask for a number").input_value() == QUESTION


def test_copied_code_asks_the_same(two, opened):
    page = opened(two)
    question = "It's \"77\" - 53?\\ $HOME `date` \u202e"
    ask(page, question)
    page.get_by_role("button", name="Copy as code").click()
    shell = page.locator("#code-text").inner_text()
    assert "\u202e" not in shell
    answer = subprocess.run(["bash", "-c", shell.replace("curl ", "curl --silent ", 1)], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["choices"][0]["number"]["value"] == pytest.approx(shown(page.locator("article.panel")))
    page.get_by_role("button", name="Python").click()
    code = page.locator("#code-text").inner_text()
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(answer.stdout.split()[0]) == pytest.approx(shown(page.locator("article.panel")))


def test_history_brings_a_question_back_and_can_be_forgotten(two, opened):
    page = opened(two)
    ask(page, QUESTION)
    value = shown(page.locator("article.panel"))
    ask(page, "What is 1 + 1?")
    page.get_by_text("History").click()
    page.get_by_role("button", name=QUESTION).click()
    answered(page)
    expect(page.get_by_label("Ask for a number")).to_have_value(QUESTION)
    assert shown(page.locator("article.panel")) == value
    page.get_by_role("button", name="Forget all").click()
    expect(page.locator("#history")).to_be_hidden()


def test_a_request_can_be_cancelled(two, opened):
    page = opened(two)
    held = []
    page.route("**/v1/completions", lambda route: held.append(route))
    page.get_by_label("Ask for a number").fill(QUESTION)
    page.locator("#submit").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_enabled()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled.").first).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    page.unroute("**/v1/completions")
    ask(page, QUESTION)
    assert shown(page.locator("article.panel")) is not None
    assert len(held) == 2


def test_a_long_search_shows_what_it_has_found_and_keeps_it_when_it_is_stopped(two, opened):
    page = opened(two)
    searches, held = [], []

    def pass_on(route):
        number = json.loads(route.request.post_data).get("number")
        if number is None:
            return route.continue_()
        searches.append(number.get("nodes_max"))
        return route.continue_() if len(searches) == 1 else held.append(route)

    page.route("**/v1/completions", pass_on)
    page.get_by_label("Ask for a number").fill(GUESS)
    page.locator("#submit").click()
    numbers = page.locator("section.numbers")
    expect(numbers).to_contain_text("16 decoder positions")
    expect(numbers).to_contain_text("Searching further")
    expect(numbers.locator(".warning")).to_have_count(0)
    expect(page.locator("section.greedy")).to_contain_text("The model writes exactly this")
    expect(numbers).to_contain_text("Most probable values")
    page.get_by_role("button", name="Cancel").click()
    expect(numbers).to_contain_text("The search ended after 16 positions")
    expect(numbers).to_contain_text("Most probable values")
    expect(numbers).not_to_contain_text("Searching further")
    page.unroute("**/v1/completions")
    ask(page, GUESS)
    number = complete(two, model="plain", prompt=GUESS, number={"support": 200})["number"]
    assert shown(page.locator("article.panel")) == pytest.approx(number["trimmed_mean"])
    assert searches == [16, 80] and len(held) == 1


# Gives the requests of the page more work than its form can.
SLOWED = """(number) => {
  const send = window.fetch;
  window.fetch = (path, options) => {
    const body = options?.body && JSON.parse(options.body);
    if (body?.number) options = { ...options, body: JSON.stringify({ ...body, number: { ...body.number, ...number } }) };
    return send(path, options);
  };
}"""


def test_the_server_sees_a_cancelled_request_as_abandoned_and_ends_it(demo_folder, start, opened):
    server = start("--model", f"plain={demo_folder}")
    page = opened(server)
    slow = slow_number()
    page.evaluate(SLOWED, slow["number"])
    page.get_by_label("Ask for a number").fill(slow["prompt"])
    page.locator("#submit").click()
    # The text is complete; only the number is under way.
    expect(page.locator("section.greedy")).to_contain_text("The model writes exactly this")
    server.wait(lambda: server.metric("ntl_sequences_running") == 1)
    assert server.metric("ntl_requests_total", code="499") == server.metric("ntl_finished_total", reason="abort") == 0
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled.").first).to_be_visible()
    server.wait(lambda: server.metric("ntl_requests_total", code="499") == 1)
    server.wait(lambda: server.metric("ntl_finished_total", reason="abort") == 1)
    assert server.quiet()


def test_an_error_of_the_server_is_shown_with_its_field(two, opened):
    page = opened(two)
    page.get_by_label("Ask for a number").fill("word " * 2000)
    page.locator("#submit").click()
    error = page.get_by_role("alert").first
    expect(error).to_contain_text("status 400")
    expect(error).to_contain_text("field prompt")


def test_a_server_that_is_gone_is_named_once_also_with_two_models(demo_folder, start, opened):
    server = start("--model", f"plain={demo_folder}", "--model", f"same={demo_folder}")
    page = opened(server)
    page.get_by_label("versus").select_option(index=1)
    server.stop()
    page.locator("#submit").click()
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.get_by_role("alert")).to_have_count(1)
    expect(page.get_by_text("…", exact=True)).to_have_count(0)


def test_an_invalid_number_of_the_settings_is_named_and_nothing_is_sent(two, opened):
    page = opened(two)
    sent = []
    page.on("request", lambda request: sent.append(request.url))
    for label, value, want in [
        ("Smallest value", "1,5", "“Smallest value” is “1,5”, which is not a number. Write decimals with a point, as in 1.5."),
        ("Maximum tokens of text", "0", "“Maximum tokens of text” is “0”, which is not an integer of at least 1."),
        ("Maximum tokens of text", "", "“Maximum tokens of text” is empty; it needs an integer of at least 1."),
    ]:
        field = page.locator(f"#{page.get_by_label(label).get_attribute('id')}")
        before = field.input_value()
        field.evaluate("(node, value) => { node.value = value; }", value)
        page.locator("#submit").click()
        expect(page.get_by_role("alert")).to_have_text(want)
        expect(field).to_be_focused()
        expect(field).to_have_attribute("aria-invalid", "true")
        field.fill(before)
    page.get_by_label("Smallest value").fill("9")
    page.get_by_label("Largest value").fill("-3")
    page.locator("#submit").click()
    expect(page.get_by_role("alert")).to_have_text("“Largest value” is -3, which is less than “Smallest value”, 9.")
    assert sent == []


def test_an_empty_question_gets_a_message(two, opened):
    page = opened(two)
    ask_empty = page.get_by_label("Ask for a number")
    ask_empty.fill("  ")
    ask_empty.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The question is empty.")
    expect(ask_empty).to_be_focused()


def test_a_link_with_an_unknown_model_or_an_unusable_value_is_explained_and_not_asked(two, opened):
    page = opened(two, "/#prompt=What+is+1+%2B+1%3F&model=t5-large&tokens=many&method=magic", wait=False)
    error = page.get_by_role("alert")
    expect(error).to_contain_text("The link names the model “t5-large”, which this server does not serve. It serves “plain”, ")
    expect(error).to_contain_text("The link sets tokens to “many”, which is not a number. The page uses 64 instead.")
    expect(error).to_contain_text("The link sets method to “magic”, which is not one of tree, sample, beam. The page uses tree instead.")
    expect(page.locator("article.panel")).to_have_count(0)
    page.locator("#submit").click()
    answered(page)
    assert shown(page.locator("article.panel")) == 2
    expect(error).to_have_count(0)


def test_a_key_is_asked_for_checked_and_kept_out_of_links(server, opened):
    page = opened(server, wait=False)
    key = page.get_by_label("API key")
    key.fill("wrong")
    key.press("Enter")
    expect(page.get_by_text("does not accept this key")).to_be_visible()
    key.fill(KEY)
    key.press("Enter")
    answered(page)
    expect(key).to_be_hidden()
    page.get_by_role("button", name="Copy as code").click()
    code = page.locator("#code-text").inner_text()
    assert "$NTL_API_KEY" in code and KEY not in code + page.url
    assert KEY not in page.evaluate("JSON.stringify({...localStorage})")


def test_hostile_texts_are_shown_as_text(two, opened):
    page = opened(two)
    answer = HOSTILE + "<b>bold</b>" + "9" * 100_000

    def hostile(route):
        body = json.loads(route.request.post_data)
        choice = {"index": 0, "text": answer, "finish_reason": "stop", "logprobs": None}
        if "number" not in body:
            logprobs = {"tokens": [HOSTILE], "token_logprobs": [-1], "top_logprobs": [{HOSTILE: -1}], "number_values": [1], "number_mass": [1]}
            event = {"choices": [{**choice, "logprobs": logprobs}]}
            route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")
            return
        found = complete(two, model="plain", prompt=QUESTION, number=body["number"])
        found["number"]["reason"] = HOSTILE
        route.fulfill(json={"choices": [found]})

    page.route("**/v1/completions", hostile)
    page.get_by_label("versus").select_option(index=1)
    page.get_by_label("Ask for a number").fill(HOSTILE)
    page.locator("#submit").click()
    answered(page, 2)
    assert page.locator("article img, article script, article b:has-text('bold'), article i").count() == 0
    text = page.locator(".answer-text").first
    expect(text).to_contain_text("<img src=x onerror=alert(1)>")
    expect(text).to_contain_text("U+202E")
    expect(text).to_contain_text("␛[31m")
    expect(text).to_contain_text("Show all")
    text.get_by_role("button").click()
    assert len(text.inner_text()) > 100_000
    expect(page.locator(".notice.warning").first).to_contain_text("<script>alert(2)</script>")
    expect(page.locator("h2.model").nth(1)).to_contain_text("<i>")
    page.get_by_text("History").click()
    expect(page.locator(".past").first).to_contain_text("<img src=x")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_the_playground_fits_and_has_no_serious_fault_of_access(two, opened, tmp_path, width, scheme):
    page = opened(two, width=width, scheme=scheme)
    for view in ("ask", "versus", "judge", "decide"):
        if view == "versus":
            page.get_by_label("versus").select_option(index=1)
            page.locator("#submit").click()
            answered(page, 2)
        if view == "judge":
            page.get_by_label("versus").select_option(index=0)
            page.locator("#view-judge").click()
            page.locator("#submit").click()
            answered(page)
            page.get_by_text("Settings").click()
        if view == "decide":
            decide(page, **forms())
            answered(page)
        fits_and_is_accessible(page, f"{view} {width} {scheme}")
        page.screenshot(path=tmp_path / f"{view}-{width}-{scheme}.png", full_page=True)


def fits_and_is_accessible(page, what):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{what} scrolls sideways"
    found = Axe().run(page).response["violations"]
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found if rule["impact"] in ("serious", "critical")] == [], what


def test_everything_works_by_keyboard_alone(two, opened):
    page = opened(two)
    page.get_by_label("Ask for a number").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    answered(page)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
    assert {"model", "submit", "token", "share", "code"} <= reached and any(name.endswith("-slider") for name in reached)


def test_a_distribution_is_drawn_at_once_also_under_load(start, opened, report):
    demo = start()

    def times():
        """Milliseconds from the first byte of the page until its scripts have loaded, and until the picture is drawn."""
        return opened(demo).evaluate("""() => {
            const [{ responseStart, loadEventEnd }] = performance.getEntriesByType("navigation");
            const [{ startTime }] = performance.getEntriesByName("ntl-distribution");
            return [loadEventEnd - responseStart, startTime - responseStart];
        }""")

    # The best of several, since other programs on this machine delay the page as well.
    for _ in range(10):
        loaded, drawn = times()
        if drawn < DRAWN_LOADS_MAX * loaded:
            break
    with ThreadPoolExecutor(64) as pool:
        others = [pool.submit(complete, demo, prompt=f"What is {k} + {k}?", number=True) for k in range(64)]
        _, beside_others = times()
        assert all(other.result()["number"] for other in others)
    report(loaded_ms=round(loaded), drawn_ms=round(drawn), drawn_ms_beside_64_requests=round(beside_others))
    assert drawn < DRAWN_LOADS_MAX * loaded


def test_the_page_is_small(two, opened, report):
    page = opened(two)
    sizes = page.evaluate("performance.getEntriesByType('resource').filter((e) => e.name.includes('/playground/')).map((e) => e.decodedBodySize)")
    size = sum(sizes) + len(httpx.get(two.url).content)
    report(page_bytes=size, files=len(sizes) + 1)
    assert size < 150_000


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_the_page_of_the_api_fits_and_has_no_serious_fault_of_access(two, opened, width, scheme):
    page = opened(two, "/docs", width=width, scheme=scheme, wait=False)
    expect(page.locator("main details").first).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    fits_and_is_accessible(page, f"docs {width} {scheme}")

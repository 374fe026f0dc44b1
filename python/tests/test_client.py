import asyncio
import base64
import inspect
import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import ntl
from ntl.judging import default_rubric

MASS = {"closed": 1, "invalid": 0, "open": 0}
NUMBER = {"value": 4, "support": [{"value": 4, "probability": 1}], "mass": MASS}
ANSWER = {"choices": [{"text": "4", "number": NUMBER}], "system_fingerprint": "f00d"}


def answering(respond, **options):
    return ntl.Client("http://server/v1/", transport=httpx.MockTransport(respond), **options)


def both(respond, call, **options):
    """The results of the same call with both clients."""

    async def concurrently():
        async with ntl.AsyncClient("http://server", transport=httpx.MockTransport(respond), **options) as client:
            return await call(client)

    return call(answering(respond, **options)), asyncio.run(concurrently())


@pytest.fixture
def waits(monkeypatch):
    """The seconds between attempts. No time passes."""
    seconds = []

    async def slept(time):
        seconds.append(time)

    monkeypatch.setattr("time.sleep", seconds.append)
    monkeypatch.setattr("asyncio.sleep", slept)
    return seconds


def test_a_number_is_requested_with_its_options_and_the_key():
    seen = []

    def respond(request):
        seen.append(request)
        return httpx.Response(200, json=ANSWER)

    client = answering(respond, model="m", api_key="secret", headers={"x-team": "a"})
    found = client.number("2 + 2 =", range=[0, 9])
    assert (found.value, found.fingerprint) == (4, "f00d")
    assert str(seen[0].url) == "http://server/v1/completions"
    assert (seen[0].headers["authorization"], seen[0].headers["x-team"]) == ("Bearer secret", "a")
    body = {"prompt": "2 + 2 =", "model": "m", "number": {"support": 1000, "range": [0, 9]}}
    assert json.loads(seen[0].content) == body
    client.number([{"role": "user", "content": "2 + 2?"}])
    assert seen[1].url.path == "/v1/chat/completions"
    assert "secret" not in repr(client)


def test_errors_have_the_message_the_field_and_the_status():
    error = {"error": {"message": "`range` must be two numbers", "type": "t", "param": "number.range", "code": None}}
    with pytest.raises(ntl.RequestRejected, match="two numbers") as raised:
        answering(lambda _: httpx.Response(400, json=error)).number("x", range=3)
    assert (raised.value.status, raised.value.field) == (400, "number.range")
    with pytest.raises(ntl.RequestRejected, match="bad gateway"):
        answering(lambda _: httpx.Response(502, text="bad gateway")).number("x")
    with pytest.raises(ntl.UnexpectedResponse):
        answering(lambda _: httpx.Response(200, json={"choices": []})).number("x")


def test_a_full_queue_is_tried_again_after_the_stated_time_and_other_errors_are_not(waits):
    full = {"error": {"message": "the queue is full", "type": "t", "param": None, "code": "queue_full"}}
    answers = []

    def respond(_):
        status, headers = answers.pop(0)
        return httpx.Response(status, json=ANSWER if status == 200 else full, headers=headers)

    date = {"Date": "Fri, 27 Nov 2026 20:00:00 GMT", "Retry-After": "Fri, 27 Nov 2026 20:00:07 GMT"}
    several = [(429, {"Retry-After": "3"}), (503, {}), (503, date), (429, {"Retry-After": "9999"}), (200, {})]
    answers[:] = several * 2
    first, second = both(respond, lambda client: client.number("x"))
    assert first == second and first.value == 4
    assert waits == [3, 1, 7, 30] * 2
    answers[:] = [(500, {}), (200, {})]
    with pytest.raises(ntl.RequestRejected):
        answering(respond).number("x")
    assert len(answers) == 1
    answers[:] = [(429, {})] * 2
    with pytest.raises(ntl.RequestRejected, match="the queue is full"):
        answering(respond, attempts=2).number("x")
    assert not answers


def test_a_broken_connection_is_tried_again_and_a_slow_response_is_not(waits):
    errors = []

    def respond(request):
        if errors:
            raise errors.pop(0)("it failed", request=request)
        return httpx.Response(200, json=ANSWER)

    errors[:] = [httpx.ConnectError, httpx.ReadError, httpx.ConnectTimeout, httpx.RemoteProtocolError]
    assert answering(respond).number("x").value == 4
    assert waits == [0.5, 1, 2, 4]
    for error, problem in [(httpx.ReadTimeout, "time-out"), (httpx.DecodingError, "failed")]:
        errors[:] = [error]
        with pytest.raises(ntl.Unreachable, match=problem):
            answering(respond).number("x")
    errors[:] = [httpx.ConnectError] * 2
    with pytest.raises(ntl.Unreachable, match="http://server/v1/completions: it failed"):
        answering(respond, attempts=2).number("x")
    assert len(waits) == 5


def echo(request):
    value = float(json.loads(request.content)["prompt"])
    number = {**NUMBER, "value": value, "support": [{"value": value, "probability": 1}]}
    return httpx.Response(200, json={"choices": [{"text": "", "number": number}]})


def test_numbers_keep_the_order_of_the_prompts(capsys):
    prompts = [str(index) for index in range(100)]
    first, second = both(echo, lambda client: client.numbers(prompts, progress=True))
    assert first == second
    assert [one.value for one in first] == list(range(100))
    assert capsys.readouterr().err.count("100/100") == 2
    assert both(echo, lambda client: client.numbers([])) == ([], [])


def test_vectors_keep_the_order_of_the_texts_and_are_requested_in_parts():
    sizes = []

    def respond(request):
        body = json.loads(request.content)
        assert (request.url.path, body["pooling"], body["model"]) == ("/v1/embeddings", "last", "m")
        sizes.append(len(body["input"]))
        vectors = [[float(text), 0.1] for text in body["input"]]
        if body["encoding_format"] == "base64":
            vectors = [base64.b64encode(struct.pack("<2f", *vector)).decode() for vector in vectors]
        return httpx.Response(200, json={"data": [{"embedding": vector} for vector in vectors]})

    texts = [str(index) for index in range(150)]
    tenth = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    first, second = both(respond, lambda client: client.embed(iter(texts), pooling="last"), model="m")
    assert first == second == [(float(index), tenth) for index in range(150)]
    assert sorted(sizes) == [22, 22, 64, 64, 64, 64]
    client = answering(respond, model="m")
    assert client.embed(["5"], pooling="last", encoding_format="float") == [(5, 0.1)]
    assert client.embed([]) == []


@pytest.mark.parametrize("data", [[], [{}], [{"embedding": None}], [{"embedding": "AAA="}], [{"embedding": "?"}]])
def test_a_response_without_a_vector_is_an_error(data):
    with pytest.raises(ntl.UnexpectedResponse):
        answering(lambda _: httpx.Response(200, json={"data": data})).embed(["x"])


def test_a_served_model_has_vectors_of_length_1_for_texts(client):
    texts = ["What is 3 + 4?", "7 apples"]
    vectors = client.embed(texts)
    assert [len(vector) for vector in vectors] == [len(vectors[0])] * 2 and vectors[0] != vectors[1]
    assert [sum(number**2 for number in vector) for vector in vectors] == pytest.approx([1, 1], abs=1e-5)
    assert client.embed(texts[:1], encoding_format="float")[0] == pytest.approx(vectors[0], abs=1e-7)
    with pytest.raises(ntl.RequestRejected) as raised:
        client.embed(texts, pooling="max")
    assert raised.value.field == "pooling"


def test_no_more_requests_than_the_concurrency_are_under_way():
    running = most = 0

    async def respond(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return echo(request)

    async def concurrently():
        transport = httpx.MockTransport(respond)
        async with ntl.AsyncClient("http://server", transport=transport, concurrency=3) as client:
            await client.numbers(["1"] * 20)
            await asyncio.gather(*(client.number("1") for _ in range(20)))

    asyncio.run(concurrently())
    assert most == 3
    with pytest.raises(ValueError, match="concurrency"):
        answering(echo, concurrency=0)


def test_a_text_in_place_of_a_list_of_texts_is_an_error():
    client = answering(echo)
    for many in (client.numbers, client.embed):
        with pytest.raises(TypeError, match="a list of texts"):
            many("12")


def test_the_first_error_ends_many_numbers():
    error = {"error": {"message": "too long", "type": "t", "param": "prompt", "code": None}}
    count = 0

    def respond(_):
        nonlocal count
        count += 1
        return httpx.Response(400, json=error)

    with pytest.raises(ntl.RequestRejected, match="too long"):
        answering(respond, concurrency=2).numbers(["a"] * 500)
    assert count < 500

    async def concurrently():
        async with ntl.AsyncClient("http://server", transport=httpx.MockTransport(respond)) as client:
            await client.numbers(["a"] * 50)

    with pytest.raises(ntl.RequestRejected, match="too long"):
        asyncio.run(concurrently())


DECIDED = {
    "model": "m",
    "answers": [
        {"type": "predicate", "name": "angry", "probability": 0.8, "x_mass": MASS, "x_bounds": {"probability": [0.8, 0.8]},
         "x_set": {"values": [True], "coverage": 0.7, "method": "probabilities"}},
        {"type": "choice", "name": "team", "choice": True, "confidence": 0.2, "x_mass": MASS, "x_bounds": {},
         "probabilities": [{"value": "true", "probability": 0.4}, {"value": True, "probability": 0.6}]},
        {"type": "score", "name": "urgency", "score": 0.75, "confidence": 0.5, "x_mass": MASS, "x_bounds": {},
         "probabilities": [{"value": 0, "label": "low", "probability": 0.25}, {"value": 1, "label": "high", "probability": 0.75}],
         "x_interval": {"low": 0, "high": 1, "coverage": 0.7, "method": "quantiles"}},
        {"type": "number", "name": "days", "number": 4, "unit": "days", "distribution": NUMBER, "x_mass": MASS},
        {"type": "refusal", "name": "plan", "x_mass": {"closed": 0, "invalid": 1, "open": 0}},
    ],
    "usage": {},
}  # fmt: skip
QUESTIONS = {
    "angry": ntl.Predicate("Is the customer angry?"),
    "team": ntl.Choice("Which team?", {"true": "the text", True: None}),
    "urgency": ntl.Score("How urgent?", ["low", "high"]),
    "days": ntl.Number("In how many days?", minimum=0, maximum=30, unit="days"),
    "plan": ntl.Choice("Which plan?", ["a", "b"]),
}


def test_decisions_are_typed_answers():
    seen = []

    def respond(request):
        seen.append(json.loads(request.content))
        return httpx.Response(200, json=DECIDED)

    found, same = both(respond, lambda client: client.decide("I was charged twice.", QUESTIONS, coverage=0.7))
    assert found == same
    assert seen[0] == seen[1] == {
        "input": "I was charged twice.",
        "x_coverage": 0.7,
        "questions": [
            {"name": "angry", "type": "predicate", "instructions": "Is the customer angry?"},
            {"name": "team", "type": "choice", "instructions": "Which team?",
             "choices": [{"value": "true", "description": "the text"}, {"value": True}]},
            {"name": "urgency", "type": "score", "instructions": "How urgent?", "levels": [{"label": "low"}, {"label": "high"}]},
            {"name": "days", "type": "number", "instructions": "In how many days?", "objective": "mean", "minimum": 0,
             "maximum": 30, "unit": "days"},
            {"name": "plan", "type": "choice", "instructions": "Which plan?", "choices": [{"value": "a"}, {"value": "b"}]},
        ],
    }  # fmt: skip
    angry, team, urgency, days, plan = found.values()
    assert list(found) == list(QUESTIONS)
    assert (angry.probability, angry.set) == (0.8, ntl.OptionSet((True,), 0.7, "probabilities"))
    assert (team.choice, team.probabilities, team.set) == (True, {"true": 0.4, True: 0.6}, None)
    assert (urgency.score, urgency.probabilities) == (0.75, (0.25, 0.75))
    assert urgency.interval == ntl.Interval(0, 1, 0.7, "quantiles")
    assert (days.number, days.distribution.mode) == (4, 4)
    assert isinstance(plan, ntl.Refusal) and plan.mass.invalid == 1
    lists = answering(respond).decisions(["a", "b"], list(QUESTIONS.values()))
    assert lists == [list(found.values())] * 2
    with pytest.raises(ntl.UnexpectedResponse, match="`answers` of 1"):
        answering(respond).decide("a", [ntl.Predicate("b")])


def test_scores_of_many_items_are_requested_in_parts():
    sizes = []

    def respond(request):
        items = json.loads(request.content)["items"]
        sizes.append(len(items))
        score = {"tokens": ["4"], "token_logprobs": [-0.1], "number_values": [3.9], "number_mass": [1.0],
                 "losses": {"ce": 0.1, "ntl-was": None}, "total": 0.1}  # fmt: skip
        return httpx.Response(200, json={"data": [{**score, "perplexity": float(item["target"])} for item in items]})

    items = [{"prompt": "2 + 2 =", "target": str(index)} for index in range(600)]
    first, second = both(respond, lambda client: client.score(items, losses=["ce", "ntl-was"]))
    assert first == second
    assert [score.perplexity for score in first] == list(range(600))
    assert first[0].losses == {"ce": 0.1, "ntl-was": None}
    assert sorted(sizes) == [88, 88, 256, 256, 256, 256]


def test_a_judge_reads_the_rubric_of_ntl_eval():
    seen = []

    def respond(request):
        seen.append(json.loads(request.content))
        return httpx.Response(200, json=ANSWER)

    manual = (Path(__file__).parents[2] / "docs/JUDGE.md").read_text()
    assert f"```\n{default_rubric(True)}\n```" in manual
    assert "Right answer" not in default_rubric(False)
    client = answering(respond)
    assert client.judge("What is {low}?", "4", rubric="{{{input}}} {answer}, {low} to {high}", scale=(0, 1, 0.5)).value == 4
    assert seen[0]["messages"] == [{"role": "user", "content": "{What is {low}?} 4, 0 to 1"}]
    assert seen[0]["number"]["scale"] == [0, 1, 0.5]
    client.judge("What is 2 + 2?", "4", reference="4", chat=False, after="Score:")
    assert seen[1]["prompt"].startswith("Grade an answer with a score from 1 to 10.")
    assert seen[1]["number"]["after"] == "Score:"
    with pytest.raises(ValueError, match="reference"):
        client.judge("a", "b", rubric="{reference}")


def test_a_chat_has_its_text_and_its_number():
    choice = {"message": {"content": "about 4"}, "finish_reason": "stop", "number": NUMBER}
    answer = answering(lambda _: httpx.Response(200, json={"choices": [choice]})).chat([{"role": "user", "content": "2 + 2?"}])
    assert (str(answer), answer.finish_reason, answer.number.value) == ("about 4", "stop", 4)


def test_both_clients_have_the_same_methods_with_the_same_parameters():
    for name, method in inspect.getmembers(ntl.Client, inspect.isfunction):
        if not name.startswith("_") and name != "close":
            assert inspect.signature(method).parameters == inspect.signature(getattr(ntl.AsyncClient, name)).parameters, name


def test_other_processes_get_a_client_with_its_own_connections():
    client = ntl.Client("http://server/v1", "m", api_key="secret", attempts=7)
    copy = pickle.loads(pickle.dumps(client))
    assert (copy.model, copy._attempts, copy._settings["headers"]) == ("m", 7, {"Authorization": "Bearer secret"})
    assert copy._http is not client._http


def test_a_served_model_returns_its_distribution(client):
    stars = client.number("How many stars: decent room, opinions are divided?")
    assert stars.values == (1, 2, 3, 4, 5)
    assert stars.mass.closed > 0.99
    assert stars.mean == pytest.approx(stars.value, abs=0.05)
    with pytest.raises(ntl.RequestRejected) as raised:
        client.number("x", quantiles=[2])
    assert raised.value.status == 400 and "quantiles" in str(raised.value)
    (known,) = client.models()
    assert stars.fingerprint == known["fingerprint"]


def test_the_bounds_of_quantiles_are_those_of_the_server(client):
    prompt = "About how many beans are in 3 cups?"
    asked = (0.05, 0.25, 0.5, 0.75, 0.95)
    compared = 0
    for nodes in (20, 60, 400):
        found = client.number(prompt, nodes_max=nodes, sampling=False, quantiles=list(asked))
        assert found.sampled is None
        for q, bounds in zip(asked, found.raw["bounds"]["quantiles"]):
            if bounds is None:
                assert max(map(abs, found.quantile_bounds(q))) == float("inf")
            else:
                assert found.quantile_bounds(q) == pytest.approx(tuple(bounds))
                compared += 1
    assert compared > 5


def test_a_served_model_decides_scores_and_judges(client):
    scored = client.score([{"prompt": "What is 1 + 1?", "candidates": ["2", "3"]}, {"prompt": "What is 1 + 1?", "target": "2"}])
    assert scored[0].candidates[0].probability > 0.5
    assert scored[1].number_values[0] == pytest.approx(2, abs=0.1)
    assert set(scored[1].losses) == {"ce", "ntl-was", "ntl-was-cdf", "ntl-mse", "ntl-mae", "ntl-huber", "ntl-level"}
    answers = client.decide("decent room, opinions are divided", QUESTIONS, coverage=0.7)
    assert list(answers) == list(QUESTIONS)
    days = answers["days"]
    assert isinstance(days, ntl.NumberAnswer) and days.raw["unit"] == "days"
    assert all(0 <= value <= 30 for value in days.distribution.values)
    for answer in answers.values():
        assert sum((answer.mass.closed, answer.mass.invalid, answer.mass.open)) == pytest.approx(1, abs=1e-6)
    judged = client.judge("decent room", "opinions are divided", rubric="How many stars: {input}, {answer}?", scale=(1, 5), chat=False)
    assert set(judged.values) <= {1, 2, 3, 4, 5}
    with pytest.raises(ntl.RequestRejected, match="template"):
        client.chat([{"role": "user", "content": "2 + 2?"}])


def test_a_server_that_cannot_start_shows_its_log(client):
    program = os.environ["NTL_SERVER"]
    with pytest.raises(ntl.ServerFailed, match="/no/such/directory"), ntl.serve("/no/such/directory", server=program):
        pass


def test_the_module_imports_only_httpx():
    optional = "numpy pandas polars sklearn matplotlib transformers"
    check = f"import sys, ntl; ntl.Client(); sys.exit([name for name in '{optional}'.split() if name in sys.modules] or 0)"
    subprocess.run([sys.executable, "-c", check], check=True)
    missing = "import sys; sys.modules['sklearn'] = None; import ntl; ntl.NumberRegressor"
    failed = subprocess.run([sys.executable, "-c", missing], check=False, capture_output=True, text=True)
    assert "ImportError: ntl.NumberRegressor needs scikit-learn and numpy: pip install 'ntl-server[sklearn]'" in failed.stderr

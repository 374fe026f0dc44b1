"""Answers to GSM8K: the prompt, what is kept of a run, and the page that is computed from it."""

import gzip
import json
from xml.etree import ElementTree

import gsm8k
import numpy as np
import pytest
from gsm8k_page import MARK, models_of, page
from gsm8k_scores import averaged, bootstrap, brier, calibration_error, kept_accuracy, mean, mode_of
from tables import replace_below


def test_the_prompt_has_solved_questions_without_calculator_marks(tmp_path):
    row = {"question": "A {b} has 2 cats?", "answer": "1+1 = <<1+1=2>>2 cats.\n#### 2"}
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row | {"question": f"{n} {row['question']}"}) + "\n" for n in range(9)))
    prompt = gsm8k.template(tmp_path / "train.jsonl")
    assert prompt.format(question="What?").startswith("Question: 0 A {b} has 2 cats?\nAnswer: 1+1 = 2 cats.\n#### 2\n\nQuestion: 1 A")
    assert prompt.format(question="What?").endswith("#### 2\n\nQuestion: What?\nAnswer:")
    assert prompt.count("Question:") == gsm8k.EXAMPLES + 1


def test_a_mean_leaves_out_texts_without_a_number():
    assert averaged([{1.0: 0.5, 2.0: 0.25}, None, {2.0: 0.75}]) == pytest.approx({1.0: 0.25, 2.0: 0.5})
    assert averaged([None]) == {}
    assert mode_of({3.0: 0.4, 2.0: 0.4 + 1e-12, 1.0: 0.2}) == (2.0, pytest.approx(0.4))
    assert mode_of({}) == mode_of(None) == (None, 0.0)


def test_the_calibration_error_is_the_gap_between_probability_and_accuracy_in_each_bin():
    confidence, correct = np.array([0.95, 0.95, 0.55, 0.55]), np.array([1.0, 1.0, 1.0, 0.0])
    assert calibration_error(confidence, correct) == pytest.approx((0.1 + 0.1) / 4)
    # Opposite gaps of one bin cancel, but not in the Brier score.
    assert calibration_error(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == pytest.approx(0)
    assert brier(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == pytest.approx(0.25)
    assert calibration_error(np.ones(4), np.ones(4)) == 0


def test_the_most_certain_answers_are_kept_and_ties_count_in_proportion():
    confidence, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1.0, 1.0, 0.0, 1.0])
    assert [kept_accuracy(confidence, correct, share) for share in (0.5, 0.75, 1.0)] == pytest.approx([1.0, 2 / 3, 0.75])
    assert kept_accuracy(np.array([0.9, 0.5, 0.5, 0.5]), np.array([1.0, 1.0, 0.0, 0.0]), 0.5) == pytest.approx((1 + 1 / 3) / 2)
    assert kept_accuracy(np.full(4, 0.5), correct, 0.25) == pytest.approx(correct.mean())


def test_an_interval_covers_a_mean_of_its_questions():
    correct = np.repeat([1.0, 0.0], [80, 20])
    low, high = bootstrap(mean, correct)
    assert low < 0.8 < high and high - low == pytest.approx(2 * 1.96 * 0.04, rel=0.1)
    assert bootstrap(mean, np.ones(5)) == (1.0, 1.0)


@pytest.fixture
def run(tmp_path):
    """Returns the directory of a run with one solution that has a number and one that has none."""
    answers = [
        {"text": "So 2.\n#### 2", "number": {"estimates": [2.0, 2.0, 2.0], "mass_closed": 0.99, "mass_open": 0.01, "support": [[2.0, 0.9899999], [7.0, 1e-9]]}},
        {"text": "I do not know.", "number": {"estimates": None, "mass_closed": 0.0, "mass_open": 0.0, "support": []}},
    ]
    samples = [
        {"doc_id": n, "truth": 2.0, "resps": [[answer["text"]]], "prediction": None if n else {"mode": 2.0}, "accuracy": 1 - n, "strict": 1 - n, "flexible": 0}
        for n, answer in enumerate(answers)
    ]
    entries = [{"id": f"answer {n}", "key": "k", "value": answer} for n, answer in enumerate(answers)]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [{"ntl-eval": "0.1.0"}, *reversed(entries)]))
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return tmp_path


def test_a_kept_run_has_the_scores_and_the_distributions(run):
    first, second = gsm8k.texts(run)
    assert first == {"id": 0, "truth": 2.0, "text": "So 2.\n#### 2", "number": 2.0, "accuracy": 1, "strict": 1, "flexible": 0}
    assert second["number"] is None
    first, second = gsm8k.numbers(run)
    assert first == {"id": 0, "truth": 2.0, "text": "So 2.\n#### 2", "support": [[2.0, 0.99]], "closed": 0.99, "open": 0.01}
    assert second["support"] is None


def written(path, rows):
    gsm8k.keep(path, rows)
    assert gzip.decompress(path.read_bytes())


@pytest.fixture
def answers(tmp_path):
    """Returns answers of a small model, and of a large one that solves ten questions and has four samples of the first eight.

    The large model is certain of the questions with even numbers and correct there. Half of its samples of the other questions are correct.
    """
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    scores = dict.fromkeys(gsm8k.SCORES, 1)
    written(folder / "0.5b-text.jsonl.gz", [{"id": n, "truth": float(n), "text": "?", "number": None, **dict.fromkeys(gsm8k.SCORES, 0)} for n in range(10)])
    written(folder / "1.5b-text.jsonl.gz", [{"id": n, "truth": float(n), "text": f"#### {n}", "number": float(n), **scores} for n in range(10)])
    for seed in range(4):
        rows = []
        for n in range(8):
            value = float(n) if n % 2 == 0 or seed < 2 else 100.0 + seed
            rows.append({"id": n, "truth": float(n), "text": f"#### {value:g}", "support": [[value, 1.0 if n % 2 == 0 else 0.8]], "closed": 1.0, "open": 0.0})
        rows[1] |= {"support": None} if seed == 3 else {}
        written(folder / f"1.5b-sample-{seed}.jsonl.gz", rows)
    return folder


def test_the_page_follows_from_the_kept_answers(answers):
    text, drawn = page(models_of(answers), "gsm8k/risk-coverage.svg")
    for line in (
        "| 0.5b | 10 | 0.000 (0.000 to 0.000) | 0.000 (0.000 to 0.000) | 0.000 (0.000 to 0.000) | 10 |",
        "| 1.5b minus 0.5b, strict | 10 | 1.000 (1.000 to 1.000) | 10 | 0 |",
        # Questions 3, 5 and 7: two correct samples of four. Question 1: two of the three that have a number.
        "| 1.5b | 4 | 8 | 0 | 0 | 0 | 0 |",
        "| 1.5b | 32 | 1 | 1.000 | 0.516 |",
        "| 1.5b, vote of the modes | 2 | 8 | 0.7",
        "| 1.5b, 1 | 0.8 to 0.9 | 15 | 0.800 | 0.533 |",
    ):
        assert line in text, line
    rows = {line.split(" | ")[0].removeprefix("| ") + " " + line.split(" | ")[1]: line for line in text.splitlines() if line.startswith("| 1.5b, mode")}
    # Alone, the odd questions are correct in two of four samples: (4 + 4 / 2) / 8.
    assert " 0.750 (" in rows["1.5b, mode of the mean distribution 1"]
    assert "1.000 (1.000 to 1.000)" in rows["1.5b, mode of the mean distribution 4"]
    assert ElementTree.fromstring(drawn).tag.endswith("svg") and drawn.count("<polyline") == 2


def test_the_least_certain_answers_of_one_sample_are_the_incorrect_ones(answers):
    text, _ = page(models_of(answers), "gsm8k/risk-coverage.svg")
    line = next(line for line in text.splitlines() if line.startswith("| 1.5b, mode of the mean distribution | 1 | 0.750") and line.count("|") == 7)
    assert line.split(" | ")[-1].startswith("1.000 (")


def test_the_text_above_the_mark_stays_and_a_second_page_is_the_same(answers):
    file = answers.with_name("gsm8k.md")
    file.write_text(f"# GSM8K\n\n{MARK}\nold\n")
    pages = []
    for _ in range(2):
        replace_below(MARK, file, page(models_of(answers), "x.svg")[0])
        pages.append(file.read_text())
    assert pages[0] == pages[1] and pages[0].startswith(f"# GSM8K\n\n{MARK}") and "old" not in pages[0]

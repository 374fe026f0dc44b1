"""Scores of a model's numbers for phrases, its scores of similarity, and the pages about them."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from asked import first_number, keep
from conftest import RECIPES
from phrases import PROMPTS
from phrases_page import Forecast, forecasts_of, studentised
from rows import read_rows
from scipy.stats import t
from similarity import pairs_of
from similarity_page import deepeval_score, readings_of, verifier_score

PEOPLE = [
    {"id": "a", "phrase": "Likely", "kind": "probability", "ratings": [70, 80, 60, 75]},
    {"id": "b", "phrase": "Doubtful", "kind": "probability", "ratings": [20, 30, 10, 20]},
    {"id": "c", "phrase": "Few", "kind": "quantity", "ratings": [3, 3, 4, 5]},
    {"id": "e", "phrase": "Lots", "kind": "quantity", "ratings": [30, 10, 100, 500]},
    {"id": "d", "phrase": "Many", "kind": "quantity", "ratings": [30, 10, 100, 50]},
]


def logprobs(**found):
    return [[text.strip("_"), math.log(p)] for text, p in found.items()]


def test_the_first_number_of_a_text_counts_if_it_is_within_the_limits():
    assert [first_number(text, 0, 2000) for text in ("about 1,200 of 5", "-3", "none", "95%", "0.5.")] == [1200, None, None, 95, 0.5]


def test_scores_of_a_forecast_equal_their_definitions():
    forecast, answers = Forecast([10, 0, 20], [0.5, 0.25, 0.25]), np.array([0, 10, 30])
    draws = np.array([0, 10, 10, 20])
    far = np.abs(draws[:, None] - answers).mean() - np.abs(draws[:, None] - draws).mean() / 2
    assert forecast.crps(answers) == pytest.approx(far)
    # The distribution functions differ by 1/12 up to 10, by 1/12 up to 20, and by 1/3 up to 30.
    assert forecast.distance(answers) == pytest.approx(10 / 12 + 10 / 12 + 10 / 3)
    assert forecast.covered(answers) == pytest.approx(2 / 3)
    assert Forecast([5]).crps(answers) == pytest.approx(np.abs(5 - answers).mean())
    assert [forecast.quantile(share) for share in (0.25, 0.26, 0.75, 1)] == [0, 10, 10, 20]


def test_a_text_without_a_number_is_in_the_middle_of_the_limits():
    line = {"distribution": [[10.0, 0.6], [1000.0, 0.2]], "samples": [None, 100.0, None], "greedy": None}
    found = forecasts_of("quantity", line)
    assert found["greedy text"].values == pytest.approx([2.5])
    assert found["16 samples"].values == pytest.approx([2])
    assert found["mean"].values == pytest.approx([1 * 0.75 + 3 * 0.25])
    assert found["mode"].values == pytest.approx([1]) and found["median"].values == pytest.approx([1])


def test_the_studentised_interval_of_normal_values_is_near_students():
    values = np.random.default_rng(3).normal(5, 2, 200)
    half = t.ppf(0.975, 199) * values.std(ddof=1) / math.sqrt(200)
    assert studentised(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)
    assert studentised([1.0, 1.0, 1.0, 1.001])[0] < 1


def test_answers_are_kept_in_order_and_resumed(tmp_path):
    path = tmp_path / "kept/model.jsonl.gz"
    with pytest.raises(ZeroDivisionError):
        keep(path, {"a": (1,), "b": (0,)}, lambda value: {"inverse": 1 / value}, 1)
    keep(path, {"b": (2,), "a": (5,)}, lambda value: {"inverse": 1 / value}, 2)
    assert read_rows(path) == [{"key": "b", "inverse": 0.5}, {"key": "a", "inverse": 1.0}]
    assert [file.name for file in path.parent.iterdir()] == ["model.jsonl.gz"]


def test_readings_of_one_token_mistake_ten_for_one():
    first = logprobs(_1=0.65, _9=0.34, x=0.005, _8=0.005)
    weighted = (1 * 0.65 + 9 * 0.34) / 0.99
    assert deepeval_score(9, [["9", first]]) == pytest.approx(weighted)
    assert deepeval_score(10, [["1", first], ["0", []]]) == 10
    digits = {str(score): score for score in range(11)}
    assert verifier_score(first, digits) == pytest.approx((1 * 0.65 + 9 * 0.34 + 8 * 0.005) / 0.995)
    spelled = [[" 7", math.log(0.3)], ["7", math.log(0.2)], ["9", math.log(0.1)]]
    assert verifier_score(spelled, digits) == pytest.approx((7 * 0.3 + 9 * 0.1) / 0.4)
    assert verifier_score([["x", 0.0]], digits) is None
    line = {"distribution": [[10, 0.6], [9, 0.34], [1, 0.05]], "greedy": 10.0, "tokens": [["1", first]]}
    mean, median, mode, greedy, _, token = readings_of(line)
    assert mean == pytest.approx(9.11 / 0.99) and (median, mode, greedy) == (10, 10, 10) and token < 4


@pytest.fixture
def answers(tmp_path):
    folder = tmp_path / "phrases"
    folder.mkdir()
    (folder / "people.jsonl").write_text("".join(json.dumps(item) + "\n" for item in PEOPLE))
    jobs = {}
    for item in PEOPLE:
        for prompt in PROMPTS[item["kind"]]:
            answer = {
                "phrase": item["phrase"],
                "prompt": prompt,
                "greedy": item["ratings"][0],
                "samples": item["ratings"],
                "distribution": [[value, 0.25] for value in item["ratings"]],
                "mass": {"closed": 1.0, "invalid": 0.0, "open": 0.0},
            }
            jobs[f"{item['id']} {prompt}"] = (answer,)
    del jobs["e list"]
    keep(folder / "perfect.jsonl.gz", jobs, lambda answer: answer, 1)
    return folder


def test_a_model_that_answers_like_people_has_no_distance_from_them(answers):
    page = answers.with_name("page.md")
    subprocess.run([sys.executable, RECIPES / "phrases_page.py", answers, "--page", page], check=True)
    row = next(line for line in page.read_text().splitlines() if line.startswith("| perfect, exact distribution |"))
    assert row.split("|")[3:5] == [" 0.0 ", " 1.00 "]
    assert "| perfect, against greedy text | -" in page.read_text()
    assert "| Many |" in page.read_text() and "Lots" not in page.read_text(), "not all prompts have an answer"


def test_the_page_of_similarity_has_the_correlations(tmp_path):
    words = tmp_path / "pairs"
    words.mkdir()
    for file in ("simlex999.txt", "wordsim353.tsv"):
        (words / file).write_text("# word 1\tword 2\tmean\n" + "".join(f"a{n}\tb{n}\t{n / 2}\n" for n in range(21)))
    assert pairs_of(words, "simlex999")[3] == ("a2", "b2", 1.0)
    jobs = {}
    for name in ("simlex999", "wordsim353"):
        for number in range(1, 22):
            score = round((number - 1) / 2)
            distribution = [[score, 1.0]]
            line = {"greedy": score, "tokens": [[str(score), logprobs(_1=1.0)]], "distribution": distribution}
            jobs[f"{name} {number}"] = (line | {"mass_closed": 1.0},)
    keep(tmp_path / "answers/model.jsonl.gz", jobs, lambda line: line, 1)
    page = tmp_path / "page.md"
    subprocess.run([sys.executable, RECIPES / "similarity_page.py", tmp_path / "answers", words, "--page", page], check=True)
    rows = [line for line in page.read_text().splitlines() if line.startswith("| model, wordsim353 | 21 |")]
    assert len(rows) == 1 and float(rows[0].split("|")[3].split()[0]) > 0.98

"""Readings of a model's answer, and the comparison of its ratings with people's."""

import gzip
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from conftest import RECIPES
from people import few_shot, one_token
from people_page import MARK, text_parts
from people_scores import SCORES, calibration_error, covered, crps, energy_distance, lead, mapped_rmse, pearson, spearman, spread
from scipy import stats


def test_one_token_is_the_mean_of_the_scores_among_its_alternatives():
    found = {"4": 0.5, "6": 0.25, "10": 0.1, "x": 0.1, "9": 0.005}
    tokens = [(" ", {}), ("4", {text: math.log(p) for text, p in found.items()}), (".", {})]
    assert one_token(tokens) == (4, pytest.approx((4 * 0.5 + 6 * 0.25) / 0.75))
    assert one_token([("The", {"4": -1.0}), ("4", {"4": -0.1})]) == (None, None)


def test_proper_scores_equal_their_definitions():
    rng = np.random.default_rng(1)
    model, people = (rng.dirichlet(np.ones(len(SCORES)), 20) for _ in range(2))
    far = np.abs(SCORES[:, None] - SCORES[None, :])

    def expected(a, b):
        return np.einsum("ni,nj,ij->n", a, b, far)

    apart = energy_distance(model, people)
    assert apart == pytest.approx(2 * expected(model, people) - expected(model, model) - expected(people, people))
    assert crps(model, people) == pytest.approx(expected(model, people) - expected(model, model) / 2)
    point = np.eye(len(SCORES))[[4]]
    assert covered(point, people[:1]) == pytest.approx(people[:1, 4])
    assert covered(np.full((1, 9), 1 / 9), people[:1]) == pytest.approx(1.0)


def test_calibration_error_is_the_gap_between_probabilities_and_shares_of_ratings():
    people = np.tile([0.0, 0.5, 0.5, *[0.0] * 6], (10, 1))
    assert calibration_error(people, people) == 0
    sure = np.tile(np.eye(9)[1], (10, 1))
    assert calibration_error(sure, people) == pytest.approx((0.5 + 0.5) / 9)
    # Texts with the same probabilities are one bin, in which opposite gaps cancel.
    halves = np.repeat(np.eye(9)[[1, 2]], 5, axis=0)
    assert calibration_error(people, halves) == pytest.approx(0)
    assert spread(people[:1]) == pytest.approx(0.5)


def test_correlations_equal_scipys_and_a_linear_map_removes_scale():
    rng = np.random.default_rng(2)
    truth = rng.normal(size=50)
    noisy = np.round(truth + rng.normal(size=50))
    assert pearson(noisy, truth) == pytest.approx(stats.pearsonr(noisy, truth).statistic)
    assert spearman(noisy, truth) == pytest.approx(stats.spearmanr(noisy, truth).statistic)
    assert pearson(np.ones(50), truth) == 0
    assert mapped_rmse(3 * truth - 7, truth) == pytest.approx(0, abs=1e-12)


def test_no_lead_is_more_certain_than_the_resamples_allow():
    assert lead(np.full(100, 0.5), np.full(100, 0.25)) == (0.25, 0.25, 0.02, True)
    assert lead(np.full(100, 0.5), np.full(100, 0.5)) == (0.0, 0.0, 1.0, False)
    assert lead(np.arange(100), np.full(100, 0.5))[2:] == (0.02, False)


@pytest.fixture
def samples(tmp_path):
    folder = tmp_path / "samples"
    folder.mkdir()
    (folder / "training-ratings.json").write_text(json.dumps({"tweets": [2, 0, 0, 0, 4, 0, 0, 0, 2]}))
    return folder


@pytest.fixture
def data(tmp_path):
    items = [{"id": str(n), "text": f"{{text}} {n}", "mean": n / 10 - 4, "ratings": [-4, n // 20, 4]} for n in range(80)]
    for split in ("train", "test"):
        with gzip.open(tmp_path / f"tweets-{split}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(item) + "\n" for item in items)
    return tmp_path


def test_examples_cover_the_scale_and_keep_braces(data):
    prompt = few_shot(data, "tweets").format(answer="new")
    scores = [int(line.rpartition(" ")[2]) for line in prompt.splitlines() if line.startswith("Sentiment") and not line.endswith(":")]
    assert len(scores) == 8 and min(scores) <= 2 and max(scores) >= 8
    assert "{text} " in prompt and prompt.endswith("Text: new\nSentiment from 1 (negative) to 9 (positive):")


def test_another_seed_draws_other_examples_of_the_same_quantiles(data):
    first, other = few_shot(data, "tweets"), few_shot(data, "tweets", 1)
    assert first != other and other == few_shot(data, "tweets", 1)
    scores = [int(line.rpartition(" ")[2]) for line in other.splitlines() if line.startswith("Sentiment") and not line.endswith(":")]
    assert len(scores) == 8 and min(scores) <= 2 and max(scores) >= 8


def test_means_that_differ_by_rounding_are_ties():
    truth = np.array([0.3, 0.1 + 0.2, 0.5, 0.7])
    assert truth[0] != truth[1]
    predicted = np.array([2.0, 1.0, 3.0, 4.0])
    assert spearman(predicted, truth) == pytest.approx(stats.spearmanr(predicted, np.round(truth, 9)).statistic)


def written_samples(path, lines):
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))


def page_of(samples):
    page = samples.with_name("page.md")
    subprocess.run([sys.executable, RECIPES / "people_page.py", samples, "--page", page], check=True)
    return page.read_text()


@pytest.fixture
def answers():
    return [
        {"id": str(n), "ratings": [1 + n % 9, 9], "distribution": np.eye(9)[n % 9].tolist(), "mass_closed": 0.5, "greedy": None, "one_token": None}
        for n in range(30)
    ]


def test_the_page_keeps_the_text_above_the_mark(samples, answers):
    written_samples(samples / "tweets-few-shot.jsonl.gz", answers)
    samples.with_name("page.md").write_text(f"# People\n\nProse.\n\n{MARK}\nold tables\n")
    text = page_of(samples)
    assert text.startswith(f"# People\n\nProse.\n\n{MARK}") and "old tables" not in text
    assert "| tweets, few-shot | **1.000 (1.000 to 1.000)** |" in text and "always the same" in text
    # The standard deviation of two ratings of 1, four of 5 and two of 9.
    assert text.splitlines()[-2].startswith("| tweets, always all training ratings |") and text.splitlines()[-2].endswith("| 2.828 |")


def test_the_page_compares_tuned_models_and_is_the_same_when_it_is_written_again(samples, answers):
    written_samples(samples / "tweets-tuned-ce-1.jsonl.gz", answers)
    written_samples(samples / "tweets-tuned-ntl-was-1.jsonl.gz", [answer | {"greedy": 1 + n % 9} for n, answer in enumerate(answers)])
    head = [{"id": answer["id"], "ratings": answer["ratings"], "value": float(n % 9)} for n, answer in enumerate(answers)]
    written_samples(samples / "tweets-tuned-head-1.jsonl.gz", head)
    record = {"seed": 1, "steps": 50, "batch": 16, "lr": 3e-4, "seconds": 120.0}
    (samples / "tuned.json").write_text(json.dumps({name: record for name in ("ce-1", "head-1", "ntl-was-1")}))
    text = page_of(samples)
    for line in (
        "| head-1 | 1 | 50 | 16 | 0.0003 | 2 |",
        "| all sets, head-1 | 1.000 (1.000 to 1.000) |",
        "|  | RMSE | RMSE after a linear map | Pearson correlation | Spearman correlation |",
        "| ntl-was-1, greedy text against ce-1, greedy text | ",
        "| head-1, regression head against ce-1, mean | ",
        "| all sets, the people | ",
    ):
        assert line in text, line
    assert page_of(samples) == text


def test_the_cross_entropy_of_text_is_compared_with_the_model_of_plain_cross_entropy():
    # Two nats per word and one per digit before training; NTL loses half a nat per word and gains on digits.
    before, plain, other = ([[words * 10, 10, digits * 4, 4]] * 5 for words, digits in ((2.0, 1.0), (2.0, 1.5), (2.5, 1.25)))
    heading, table = text_parts({"before training": before, "ce-1": plain, "ntl-was-1": other})
    assert "The first 5 questions" in heading
    rows = table.splitlines()[2:]
    assert rows[0] == "| before training | 2.0000 |  | 1.0000 |  |"
    assert rows[2] == "| ntl-was-1 | 2.5000 | +0.5000 to +0.5000, p ≤ 0.001 | 1.2500 | -0.2500 to -0.2500, p ≤ 0.001 |"

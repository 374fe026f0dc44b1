"""The table of incorrect answers, from runs that are written by hand."""

import json

import pytest
from conftest import RECIPES  # noqa: F401
from scipy.stats import binomtest

import results


def model_with(work, name, answers):
    """Returns a model whose greedy answers have the given absolute errors. `None` is a text without a number."""
    folder, run = work / "models/sums" / name, work / "runs/sums" / name / "text"
    for made in (folder, run):
        made.mkdir(parents=True)
    (folder / "training.json").write_text("{}")
    samples = [{"doc_id": item, "accuracy": int(error == 0), "absolute_error": error} for item, error in enumerate(answers)]
    (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    (run / "report.json").write_text(json.dumps({"n": len(answers)}))
    return results.Model(folder, work / "runs")


def test_errors_of_wrong_answers_are_compared_where_both_models_are_wrong(tmp_path):
    plain = model_with(tmp_path, "ce-2", [0, 10, 20, 3000, 4, None])
    other = model_with(tmp_path, "ntl-was-2", [9, 0, 2, 3, 5, 1])
    assert other.errors("") == {0: 9, 2: 2, 3: 3, 4: 5, 5: 1}
    lines = results.wrong_table([plain, other], "").splitlines()
    # CE: four wrong of six, and a text without a number. NTL-WAS: five wrong; both are wrong on 2, 3 and 4.
    assert lines[2] == "| CE | 0.6667 | 15.000 | 0.5000 | 0.2500 | – |"
    assert lines[3] == "| NTL-WAS | 0.8333 | 3.000 | 1.000 | 0.0000 | 2 to 1 (p 1) |"


@pytest.mark.parametrize(("closer", "farther"), [(0, 0), (3, 9), (40, 60), (61, 39)])
def test_the_sign_test_is_the_binomial_test(closer, farther):
    expected = binomtest(closer, closer + farther).pvalue if closer + farther else 1.0
    assert results.sign_test(closer, farther) == pytest.approx(expected)


def test_held_out_sums_are_written_once_and_have_the_right_answers(tmp_path):
    kept = results.held_out_sums(tmp_path)
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(rows) == results.SUMS and results.held_out_sums(tmp_path) == kept
    checked = [row for row in rows if "+" in row["question"] and set(row["question"]) <= set("0123456789+-. ")]
    assert checked, "some questions are bare sums"
    for row in checked:
        p, q = row["question"].split("+")
        assert float(row["answer"]) == pytest.approx(float(p) + float(q))

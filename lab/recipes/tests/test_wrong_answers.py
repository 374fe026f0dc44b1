"""The tables of incorrect answers, of CRPS and of repeated jokes, from runs that are written by hand, and the picture."""

import json

import pytest
from scipy.stats import binomtest

import results
from pictures import COLOURS, dots


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


def test_crps_is_compared_on_the_items_for_which_both_models_have_one(tmp_path):
    def model(name, scores):
        found = model_with(tmp_path, name, [])
        run = found.runs / "regress"
        run.mkdir()
        samples = [{"doc_id": item} | ({} if score is None else {"crps": score}) for item, score in enumerate(scores)]
        (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        return found

    models = [model("ce-2", [4, 1, 3, None]), model("ntl-was-2", [None, 3, 5, 9]), model("ntl-was-3", [1, 1, 1, 1]), model("head-2", [1, 1, 1, 1])]
    lines = results.crps_table(models, "").splitlines()
    assert lines[2:] == ["| NTL-WAS, seed 2 | 2 | 2.000 | 4.000 | 2.000 (2.000 to 2.000) |"]
    assert results.crps_table(models[2:], "") == ""


def test_a_picture_has_every_objective():
    assert len(set(COLOURS)) == len(results.OBJECTIVES)
    groups = {name: {"mean": [1.0]} for name in [*results.OBJECTIVES, "another"]}
    svg = dots("RMSE", groups, 1.0, "constant")
    assert svg.count("<circle") == len(groups) and all(f"{name}, mean" in svg for name in groups)


@pytest.mark.parametrize(("closer", "farther"), [(0, 0), (3, 9), (40, 60), (61, 39)])
def test_the_sign_test_is_the_binomial_test(closer, farther):
    expected = binomtest(closer, closer + farther).pvalue if closer + farther else 1.0
    assert results.sign_test(closer, farther) == pytest.approx(expected)


def test_held_out_sums_are_written_once_and_have_the_right_answers(tmp_path):
    folder = results.held_out_sums(tmp_path)
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(texts) == {"arithmetic_test_interpolate.txt", "arithmetic_test_extrapolate.txt"}
    for text in texts.values():
        lines = text.splitlines()
        rows = list(zip(lines[::2], lines[1::2]))
        assert len(rows) == results.SUMS
        checked = [row for row in rows if "+" in row[0] and set(row[0]) <= set("0123456789+-. ")]
        assert checked, "some questions are bare sums"
        for question, answer in checked:
            p, q = question.split("+")
            assert float(answer) == pytest.approx(float(p) + float(q))
    (folder / "arithmetic_test_interpolate.txt").write_text("kept")
    assert results.held_out_sums(tmp_path) == folder and (folder / "arithmetic_test_interpolate.txt").read_text() == "kept"


def test_metrics_without_repeated_jokes_leave_out_these_items_and_texts_without_a_number(tmp_path):
    for mode, numbers in (("text", [0, 0, 0, None]), ("regress", [1, 2, 3, 9])):
        rows = [(n if n is None else {"mean": n, "median": n}, truth) for n, truth in zip(numbers, [1, 4, 5, 9])]
        samples = [{"doc_id": item, "prediction": prediction, "truth": truth} for item, (prediction, truth) in enumerate(rows)]
        run = tmp_path / "runs/rjokes/ce-1" / mode
        run.mkdir(parents=True)
        (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    folder = tmp_path / "models/rjokes/ce-1"
    folder.mkdir(parents=True)
    (folder / "training.json").write_text("{}")
    model, constant = results.Model(folder, tmp_path / "runs"), {"constant": {"mae": 2.0, "rmse": 3.0, "pearson": None}}
    lines = results.repeated_table([model], {1}, constant, constant).splitlines()
    assert lines[2] == "| CE, greedy text | 3.333 | 3.000 | 3.742 | 3.606 | – | – |"
    assert lines[3] == "| CE, numbers | 1.000 | 0.6667 | 1.414 | 1.155 | 0.9474 | 0.9608 |"
    assert lines[4] == "| baseline: constant | 2.000 | 2.000 | 3.000 | 3.000 | – | – |"

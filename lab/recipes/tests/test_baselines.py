"""The trivial baselines of rJokes."""

import subprocess
import sys

import pytest
from baselines import baselines, repeated
from conftest import RECIPES


def test_every_baseline_is_measured_on_the_first_items_and_words_predict_what_length_cannot(tmp_path):
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    # The score is the word; both texts have the same length.
    train.write_text("1\tgood joke\n3\tevil joke\n" * 20)
    test.write_text("1\tgood joke\n3\tevil joke\n9\tnot rated\n")
    found = baselines(train, test, 2)
    mean, length, words = (found[name] for name in found if "median" not in name)
    assert mean == {"mae": 1.0, "rmse": 1.0, "r2": 0.0, "pearson": None}
    assert length["rmse"] == pytest.approx(1.0) and words["rmse"] < 0.2 and words["pearson"] == pytest.approx(1.0)


def test_new_texts_are_those_whose_words_are_not_in_the_training_file(tmp_path):
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("1\tGood joke.\n3\tEvil joke!\n" * 20)
    test.write_text("9\tgood   JOKE\n9\tevil, joke\n2\tgood evil joke\n")
    assert baselines(train, test, new=True)["always the training mean"]["rmse"] == 0.0
    assert baselines(train, test)["always the training mean"]["rmse"] > 1
    assert repeated(train, test) == [0, 1] and repeated(train, test, 1) == [0]


def test_scores_that_are_not_numbers_are_one_line(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("funny\ta joke\n")
    command = [sys.executable, RECIPES / "baselines.py", path, path]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1) and "funny" in ended.stderr

"""Single ratings of people as training data, and frozen layers whose states are kept."""

import gzip
import json

import pytest
import torch
from conftest import SMALL, small_model
from safetensors.torch import load_file

import data
import train
from frozen import LowerLayers
from kinds import KINDS
from objectives import Objective
from ratings import RatedTexts

ITEMS = [{"text": f"text {n} {'long ' * (n % 7)}", "ratings": [n % 9 - 4, (n + 1) % 9 - 4]} for n in range(40)]


def rated_file(path, items):
    path.write_bytes(gzip.compress("".join(json.dumps(item) + "\n" for item in items).encode()))
    return str(path)


def test_a_pass_draws_one_rating_of_each_text_and_the_next_pass_draws_again():
    rows = RatedTexts(ITEMS, seed=1)
    assert rows.per_pass == 32
    first, second = ([rows[index] for index in range(start, start + 32)] for start in (0, 32))
    allowed = {f"{item['text']}\nSentiment:": {str(rating + 5) for rating in item["ratings"]} for item in ITEMS}
    for drawn in (first, second):
        assert len({row["question"] for row in drawn}) == 32
        assert all(row["answer"] in allowed[row["question"]] for row in drawn)
    answers = [{row["question"]: row["answer"] for row in drawn} for drawn in (first, second)]
    assert any(answers[1].get(question, answer) != answer for question, answer in answers[0].items())
    assert [RatedTexts(ITEMS, seed=1)[index] for index in range(32)] == first != [RatedTexts(ITEMS, seed=2)[index] for index in range(32)]


def test_texts_of_the_test_split_are_left_out_of_training(tmp_path):
    held_out = rated_file(tmp_path / "test.jsonl.gz", [{"text": "TEXT  3 " + "long " * 3, "ratings": [0]}])
    rows = data.load("ratings", [rated_file(tmp_path / "train.jsonl.gz", ITEMS)], held_out=[held_out])
    assert rows.items == ITEMS[:3] + ITEMS[4:]


@pytest.mark.parametrize(
    "row, want",
    [
        ({"ratings": [1]}, "no text in the field `text`"),
        ({"text": "a", "ratings": []}, "no list of integers from -4 to 4 in the field `ratings`"),
        ({"text": "a", "ratings": [5]}, "no list of integers from -4 to 4"),
        ({"text": "a", "ratings": [True]}, "no list of integers from -4 to 4"),
        ({"text": "a", "ratings": [1]}, "1 texts that are not in --validation"),
    ],
)
def test_bad_ratings_are_rejected(tmp_path, row, want):
    with pytest.raises(data.InputError, match=want):
        data.load("ratings", [rated_file(tmp_path / "train.jsonl.gz", [row])])


@pytest.mark.parametrize("name", ["llama", "llama-regression-head"])
def test_frozen_layers_change_no_loss_and_their_states_are_kept(tmp_path, monkeypatch, name):
    kind, (model, tokenizer) = KINDS[name], small_model(name, "--layers", "3")
    rows = [RatedTexts(ITEMS, seed=1)[index] for index in range(8)]
    objective = Objective("ntl-was", 0.3, tokenizer, model.config.vocab_size)
    whole, _ = kind.loss(model, kind.collate(tokenizer, 32, rows), objective)
    monkeypatch.setattr(kind, "lower", LowerLayers(model, 2, tmp_path / "states.sqlite"))
    first, _ = kind.loss(model, kind.collate(tokenizer, 32, rows), objective)
    assert first.item() == pytest.approx(whole.item(), rel=1e-5)
    first.backward()
    trained = {place for place, weights in model.named_parameters() if weights.grad is not None}
    assert any("layers.2." in place for place in trained) and not any(f"layers.{n}." in place for place in trained for n in (0, 1))

    again = LowerLayers(model, 2, tmp_path / "states.sqlite")
    monkeypatch.setattr(again, "computed", lambda sequences: pytest.fail("the states were kept"))
    monkeypatch.setattr(kind, "lower", again)
    assert kind.loss(model, kind.collate(tokenizer, 32, rows), objective)[0].item() == first.item()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight += 0.1
    other = LowerLayers(model, 2, tmp_path / "states.sqlite")
    ids = tokenizer(rows[0]["question"]).input_ids
    assert torch.equal(other.states([ids])[0], other.computed([ids])[0]), "states of other weights are not taken"


def test_training_leaves_frozen_layers_as_they_are_and_resumes(tmp_path):
    files = [rated_file(tmp_path / "train.jsonl.gz", ITEMS)]
    common = ["--dataset", "ratings", "--train", *files, "--kind", "llama", "--warmup", "1", "--schedule", "constant_with_warmup", *SMALL.split()]
    start, tuned = tmp_path / "start", tmp_path / "tuned"
    sums = ["--dataset", "demo", "--kind", "llama", *SMALL.split(), "--layers", "2", "--max-steps", "1", "--output", str(start)]
    assert train.main(sums) == 0
    for steps in ("2", "4"):
        run = [*common, "--model", str(start), "--freeze", "1", "--max-steps", steps, "--output", str(tuned)]
        assert train.main(run) == 0
    record = json.loads((tuned / "training.json").read_text())
    assert (record["steps"], record["freeze"]) == (4, 1)
    before, after = (load_file(folder / "model.safetensors") for folder in (start, tuned))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any("layers.0." in name or "embed" in name for name in changed)


def test_at_least_one_layer_must_be_trained():
    model, _ = small_model("llama", "--layers", "3")
    with pytest.raises(data.InputError, match="--freeze 3: the model has 3 layers"):
        LowerLayers(model, 3, None)

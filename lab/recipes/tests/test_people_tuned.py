"""The ratings of a fine-tuned model are the probabilities of its tokens."""

import gzip
import json
import math
from argparse import Namespace

import pytest
import torch
from conftest import SMALL, small_model

import people_tuned
import train
from kinds import KINDS
from people import SETS

ITEMS = [{"id": str(n), "text": "What is " + "1 + " * n + "2?", "ratings": [4, -4]} for n in range(5)]


@torch.no_grad()
@pytest.mark.parametrize("freeze", [0, 1])
def test_a_distribution_has_the_probabilities_of_the_scores_after_the_space(freeze):
    kind, (model, tokenizer) = KINDS["llama"], small_model("llama", "--layers", "2")
    kind.prepared(model, tokenizer, Namespace(freeze=freeze, states=None))
    found = people_tuned.rated(kind, model, tokenizer, ITEMS)
    assert [row["id"] for row in found] == [item["id"] for item in ITEMS] and found[0]["ratings"] == [1, 9]
    for item, row in zip(ITEMS, found):
        ids = tokenizer(f"{item['text']}\nSentiment:").input_ids
        weights = []
        for score in range(1, 10):
            answer = kind.answer_ids(tokenizer, str(score))[:-1]
            logprobs = model(torch.tensor([ids + answer])).logits[0].log_softmax(-1)
            weights.append(math.exp(sum(logprobs[len(ids) + n - 1, token].item() for n, token in enumerate(answer))))
        assert row["distribution"] == pytest.approx([weight / sum(weights) for weight in weights], abs=2e-5)
        assert row["mass_closed"] == pytest.approx(sum(weights), abs=1e-4)


@torch.no_grad()
def test_the_value_of_a_head_is_the_value_that_it_predicts():
    kind, (model, tokenizer) = KINDS["llama-regression-head"], small_model("llama-regression-head")
    found = people_tuned.rated(kind, model, tokenizer, ITEMS)
    expected = kind.answers(model, tokenizer, [f"{item['text']}\nSentiment:" for item in ITEMS])
    assert [row["value"] for row in found] == pytest.approx([float(text) for text in expected], abs=1e-4)


def test_models_are_rated_again_only_after_more_training(tmp_path, capsys):
    for name in SETS:
        for split in ("train", "test"):
            lines = [json.dumps({"id": f"{name}-{n}", "text": f"{split} {name} {n}", "ratings": [n % 9 - 4]}) for n in range(8)]
            (tmp_path / f"{name}-{split}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    start, models, samples = tmp_path / "start", tmp_path / "models", tmp_path / "samples"
    sums = ["--dataset", "demo", "--kind", "llama", *SMALL.split(), "--layers", "2", "--max-steps", "1", "--output", str(start)]
    assert train.main(sums) == 0

    def trained(kind, name, steps):
        files = [str(path) for path in sorted(tmp_path.glob("*-train.jsonl.gz"))]
        run = ["--dataset", "ratings", "--train", *files, "--kind", kind, "--model", str(start), "--freeze", "1", *SMALL.split()]
        assert train.main([*run, "--max-steps", str(steps), "--output", str(models / name)]) == 0

    def rated():
        capsys.readouterr()
        people_tuned.main([str(tmp_path), str(models), str(samples), "--limit", "5"])
        return capsys.readouterr().out.splitlines()

    trained("llama", "ce-1", 1)
    trained("llama-regression-head", "head-1", 1)
    assert rated() == ["ce-1 1", "head-1 1"]
    with gzip.open(samples / "movies-tuned-ce-1.jsonl.gz", "rt") as lines:
        assert len(list(lines)) == 5
    kept = {path.name: path.read_bytes() for path in samples.glob("*.gz")}
    assert len(kept) == 2 * len(SETS) and rated() == []
    # Eight training texts per set, with ratings from -4 to 3.
    assert json.loads((samples / "training-ratings.json").read_text()) == {name: [1] * 8 + [0] for name in SETS}
    trained("llama", "ce-1", 2)
    assert rated() == ["ce-1 2"]
    assert (samples / "movies-tuned-head-1.jsonl.gz").read_bytes() == kept["movies-tuned-head-1.jsonl.gz"]

"""Compares ntl-server's responses with torch's results, for a trained model of every kind.

NTL_SERVER is the server to test.
"""

import json
import os
import urllib.request
from argparse import Namespace

import pytest
import torch

import kinds
import train
from generated import GeneratedQuestions
from kinds import KINDS, encode
from objectives import OBJECTIVES, Objective
from served import Server

# Two float32 implementations of the same small network.
TOLERANCE = 2e-4
PROMPTS = ["What is 336 - -20?", "Work out -17 + 4.", "Sum 12.5 and 3.", "7+2"]
TARGETS = ["356", "-13", "15.5", "9"]
TEXT_KINDS = ["t5", "t5-words", "t5-rt", "llama"]
ARGUMENTS = {
    "t5": ["--kind", "t5", "--objective", "ntl-mse"],
    "t5-words": ["--kind", "t5", "--tokenizer", "words", "--objective", "ntl-was"],
    "t5-rt": ["--kind", "t5-rt", "--log-scale"],
    "t5-xval": ["--kind", "t5-xval", "--log-scale"],
    "t5-regression-head": ["--kind", "t5-regression-head", "--log-scale"],
    "llama": ["--kind", "llama", "--objective", "ntl-huber"],
}
pytestmark = pytest.mark.skipif("NTL_SERVER" not in os.environ, reason="NTL_SERVER is not set")


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Trains every kind for 50 steps and returns the directories."""
    work = tmp_path_factory.mktemp("trained")
    questions = work / "train.jsonl"
    sums = GeneratedQuestions(2000, tasks={"sums": 1})
    questions.write_text("".join(json.dumps(sums[index]) + "\n" for index in range(2000)))
    small = "--batch 16 --d-model 32 --d-ff 64 --layers 2 --heads 2 --max-length 64 --vocabulary 120 --device cpu --lr 5e-3"
    for name, arguments in ARGUMENTS.items():
        files = ["--dataset", "gsm8k", "--train", str(questions), "--output", str(work / name), "--max-steps", "50"]
        assert train.main([*files, *small.split(), *arguments]) == 0
    return work


@pytest.fixture(scope="session")
def server(folders):
    models = [word for name in ARGUMENTS for word in ("--model", f"{name}={folders / name}")]
    with Server(*models) as server:
        yield server


@pytest.fixture
def trained(folders):
    """Returns the kind, the model and the tokenizer, which it opens from a trained directory."""

    def opened(name):
        kind = KINDS[train.parse(["--dataset", "demo", "--output", "", *ARGUMENTS[name]]).kind]
        log_scale = "--log-scale" in ARGUMENTS[name]
        args = Namespace(tokenizer="words" if name == "t5-words" else "spiece", log_scale=log_scale, freeze=0)
        model, tokenizer = kind.open(folders / name, args)
        return kind, model.eval(), tokenizer

    return opened


def post(server, path, **body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@torch.no_grad()
def aligned(kind, model, tokenizer, prompt, target):
    """Returns logits [1, D, V] at the tokens of the target, and these tokens [1, D]."""
    batch = kind.collate(tokenizer, 64, [{"question": prompt, "answer": target}])
    labels = batch.pop("labels")
    if isinstance(kind, kinds.Llama):
        first = (labels[0] != -100).nonzero()[0].item()
        return model(**batch).logits[:, first - 1 : -1], labels[:, first:]
    return kind.logits(model, batch, labels), labels


@pytest.mark.parametrize("name", TEXT_KINDS)
def test_scores_match_torch(server, trained, name):
    kind, model, tokenizer = trained(name)
    # The answer of a decoder-only model follows a space.
    space = " " if name == "llama" else ""
    items = [{"prompt": prompt, "target": space + target} for prompt, target in zip(PROMPTS, TARGETS)]
    losses = ["ce"] if name == "t5-rt" else list(OBJECTIVES)
    data = post(server, "/v1/score", model=name, items=items, losses=losses)["data"]
    for prompt, target, row in zip(PROMPTS, TARGETS, data):
        logits, labels = aligned(kind, model, tokenizer, prompt, target)
        assert row["token_ids"] == labels[0].tolist()
        logprobs = logits.log_softmax(-1)[0].gather(-1, labels[0, :, None])[:, 0]
        assert row["token_logprobs"] == pytest.approx(logprobs.tolist(), abs=TOLERANCE)
        for loss in losses:
            objective = Objective(loss, 1.0, tokenizer, model.config.vocab_size)
            parts = objective(logits, labels)[1]
            want = parts["token_loss" if loss == "ce" else "number_loss"].item()
            assert row["losses"][loss] == pytest.approx(want, abs=10 * TOLERANCE, rel=TOLERANCE), loss


@pytest.mark.parametrize("name", [*TEXT_KINDS, "t5-xval"])
def test_greedy_texts_match_torch(server, trained, name):
    kind, model, tokenizer = trained(name)
    texts = kind.answers(model, tokenizer, PROMPTS, max_new_tokens=8)
    choices = post(server, "/v1/completions", model=name, prompt=PROMPTS, temperature=0, max_tokens=8)["choices"]
    for text, choice in zip(texts, choices):
        if name == "t5-xval":
            # Values are printed in single precision.
            words, want = choice["text"].split(), text.split()
            assert len(words) == len(want)
            for word, wanted in zip(words, want):
                assert word == wanted or float(word) == pytest.approx(float(wanted), rel=1e-3, abs=1e-3)
        else:
            assert "".join(choice["text"].split()) == "".join(text.split())


@pytest.mark.parametrize("name", ["t5", "t5-rt", "t5-xval"])
def test_prompts_have_the_tokens_that_were_trained(server, trained, name):
    _, _, tokenizer = trained(name)
    for prompt in PROMPTS:
        assert post(server, "/tokenize", model=name, prompt=prompt)["tokens"] == encode(tokenizer, prompt, 64)[0]


def test_numbers_of_xval_come_from_its_number_head(server, trained):
    kind, model, tokenizer = trained("t5-xval")
    for prompt in PROMPTS:
        batch = kind.collate(tokenizer, 64, [{"question": prompt, "answer": "1"}])
        labels = batch.pop("labels")
        with torch.no_grad():
            logits, numbers = kind.both(model, batch, labels)
        body = {"prompt": prompt, "number": {"support": 1000, "trim": 0}}
        support = post(server, "/v1/completions", model="t5-xval", **body)["choices"][0]["number"]["support"]
        # Other numbers begin with a sign or a space.
        first = [point for point in support if point["value"] == pytest.approx(numbers[0, 0].item(), rel=TOLERANCE)]
        assert len(first) == 1, support
        mass = logits.softmax(-1)[0, 0, kind.number_id].item()
        assert first[0]["probability"] == pytest.approx(mass, abs=TOLERANCE)


def test_values_of_the_regression_head_match_torch(server, trained):
    kind, model, tokenizer = trained("t5-regression-head")
    values = [float(answer) for answer in kind.answers(model, tokenizer, PROMPTS)]
    choices = post(server, "/v1/completions", model="t5-regression-head", prompt=PROMPTS, number=True)["choices"]
    assert [choice["number"]["value"] for choice in choices] == pytest.approx(values, rel=TOLERANCE, abs=TOLERANCE)
    # The head depends on the prompt.
    assert len({round(value, 6) for value in values}) == len(values)

"""The ratings of a fine-tuned model are the probabilities of its tokens."""

import math

import pytest
import torch
from conftest import small_model

import people_tuned
from kinds import KINDS

ITEMS = [{"id": str(n), "text": "What is " + "1 + " * n + "2?", "ratings": [4, -4]} for n in range(5)]


@torch.no_grad()
def test_a_distribution_has_the_probabilities_of_the_scores_after_the_space():
    kind, (model, tokenizer) = KINDS["llama"], small_model("llama")
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

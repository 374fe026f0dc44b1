"""The import path, and small models with random weights."""

import sys
from pathlib import Path

import torch

RECIPES = Path(__file__).parents[1]
sys.path[:0] = [str(RECIPES), str(RECIPES.parents[1] / "server/conformance")]

import train  # noqa: E402
from kinds import KINDS  # noqa: E402

SMALL = "--batch 4 --d-model 16 --d-ff 32 --layers 1 --decoder-layers 1 --heads 2 --max-length 32 --vocabulary 100 --device cpu"
ROWS = [
    {"question": "What is 1 + 2?", "answer": "3"},
    {"question": "Work out 10 - -200.", "answer": "210"},
    {"question": "Put together 12.5 and 3.", "answer": "15.5"},
]


def small_model(name, *arguments):
    arguments = ["--dataset", "demo", "--output", "", "--tokenizer", "words", "--kind", name, *SMALL.split(), *arguments]
    torch.manual_seed(1)
    model, tokenizer = KINDS[name].create(train.parse(arguments), ROWS * 40)
    return model.eval(), tokenizer

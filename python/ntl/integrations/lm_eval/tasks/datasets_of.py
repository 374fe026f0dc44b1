"""The items of the tasks, from the files that `ntl-eval data` downloads to its cache."""
# pyright: reportMissingImports=false

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path

import datasets

Pairs = Sequence[tuple[str, str]]


def cache() -> Path:
    """Returns the data directory of `ntl-eval`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NTL_EVAL_DATA_CACHE") or Path(base) / "ntl-eval")


def text(task: str, *names: str) -> str:
    """Returns the text of the first of these files that exists, decompressed."""
    folder = cache() / task
    for path in (folder / name for name in names):
        if path.is_file():
            packed = path.suffix == ".gz"
            return (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode()
    raise FileNotFoundError(f"there is no {' or '.join(names)} in {folder}: run `ntl-eval data {task}`")


def splits(**items: Pairs) -> datasets.DatasetDict:
    """Returns lists of (question, answer) as a dataset."""
    columns = ({"question": [one[0] for one in pairs], "answer": [one[1] for one in pairs]} for pairs in items.values())
    return datasets.DatasetDict(zip(items, map(datasets.Dataset.from_dict, columns)))


def arithmetic(split: str, **_: object) -> datasets.DatasetDict:
    """Reads DeepMind's format: two lines per item."""
    lines = text("arithmetic", f"arithmetic_test_{split}.txt").splitlines()
    return splits(test=list(zip(lines[::2], lines[1::2], strict=True)))


def gsm8k(**_: object) -> datasets.DatasetDict:
    """Reads OpenAI's JSON lines. The solved questions before each question come from train.jsonl."""

    def read(name: str) -> Pairs:
        items = map(json.loads, text("gsm8k", name).splitlines())
        return [(item["question"], item["answer"]) for item in items]

    return splits(test=read("test.jsonl"), train=read("train.jsonl"))


def rjokes(**_: object) -> datasets.DatasetDict:
    """Reads one score, a tab and one joke per line."""
    lines = text("rjokes", "test.tsv.gz", "test.tsv").split("\n")
    rows = (line.split("\t", 1) for line in lines if line.strip())
    return splits(test=[(joke, score) for score, joke in rows])

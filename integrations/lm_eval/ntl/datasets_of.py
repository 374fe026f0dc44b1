"""The items of the tasks, from the files that `ntl-eval data` leaves in its cache."""

import gzip
import json
import os
from pathlib import Path

import datasets


def cache():
    """Where `ntl-eval` keeps data."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NTL_EVAL_DATA_CACHE") or Path(base) / "ntl-eval")


def text(task, *names):
    """The text of the first of these files that is there, unpacked."""
    folder = cache() / task
    for path in (folder / name for name in names):
        if path.is_file():
            packed = path.suffix == ".gz"
            return (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode()
    raise FileNotFoundError(f"there is no {' or '.join(names)} in {folder}: run `ntl-eval data {task}`")


def splits(**items):
    """Lists of (question, answer) as a dataset."""
    columns = ({"question": [one[0] for one in pairs], "answer": [one[1] for one in pairs]} for pairs in items.values())
    return datasets.DatasetDict(zip(items, map(datasets.Dataset.from_dict, columns)))


def arithmetic(split, **_):
    """DeepMind's two lines an item."""
    lines = text("arithmetic", f"arithmetic_test_{split}.txt").splitlines()
    return splits(test=list(zip(lines[::2], lines[1::2], strict=True)))


def gsm8k(**_):
    """OpenAI's JSON lines; the solved questions in front of a question are those of train.jsonl."""

    def read(name):
        items = map(json.loads, text("gsm8k", name).splitlines())
        return [(item["question"], item["answer"]) for item in items]

    return splits(test=read("test.jsonl"), train=read("train.jsonl"))


def rjokes(**_):
    """A score, a tab and a joke a line."""
    lines = text("rjokes", "test.tsv.gz", "test.tsv").split("\n")
    rows = (line.split("\t", 1) for line in lines if line.strip())
    return splits(test=[(joke, score) for score, joke in rows])

"""Questions and answers of the paper's datasets, read from local files.

| dataset | files |
|---|---|
| `arithmetic`, `mathematics_dataset` | `.txt`: a line with the question, a line with the answer, and so on |
| `gsm8k`, `multirc` | `.jsonl`: one object per line with `question` and `answer` |
| `rjokes` | `.tsv`: score, tab, joke |
| `ratings` | `.jsonl`: one object per line with `text` and `ratings`, a list of integers from -4 to 4: see `ratings.py` |
| `demo`, `long_sums`, `chains`, `long_chains` | none: the questions are generated, see `generated.py` |

Every format may be gzipped (`.gz`). `gsm8k` loses its calculator annotations `<<...>>`, as in the paper.
"""

import gzip
import json
import re
from pathlib import Path

from generated import TASKS, GeneratedQuestions
from ratings import MIDDLE, RatedTexts, without

DATASETS = ["arithmetic", "mathematics_dataset", "gsm8k", "rjokes", "ratings", "multirc", "demo", "long_sums", "chains", "long_chains"]
# The generated datasets, with the share of each kind of question.
GENERATED = {"demo": TASKS, "long_sums": {"long_sums": 1.0}, "chains": {"chains": 1.0}, "long_chains": {"long_chains": 1.0}}
# More questions than any run needs: item i is generated on demand.
GENERATED_COUNT = 100_000_000


class InputError(Exception):
    """An error that the user can fix: one line that names the place and the cause."""


def lines(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        return file.read().splitlines()


def from_txt(path):
    stripped = [line.strip() for line in lines(path)]
    if len(stripped) % 2:
        raise InputError(f"{path}: {len(stripped)} lines, but questions and answers alternate: the last question has no answer")
    return [{"question": q, "answer": a} for q, a in zip(stripped[::2], stripped[1::2])]


def objects(path):
    """Yields the number and the object of each line."""
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON: {error.msg}") from error


def from_jsonl(path):
    rows = []
    for number, row in objects(path):
        for field in ("question", "answer"):
            if not isinstance(row, dict) or not isinstance(row.get(field), str):
                raise InputError(f"{path}, line {number}: no text in the field `{field}`")
        rows.append({"question": row["question"], "answer": row["answer"]})
    return rows


def from_tsv(path):
    rows = []
    for number, line in enumerate(lines(path), 1):
        score, tab, joke = line.strip().partition("\t")
        if not tab:
            raise InputError(f"{path}, line {number}: no tab between score and joke")
        rows.append({"question": joke, "answer": score})
    return rows


def rated(path):
    rows = []
    for number, row in objects(path):
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise InputError(f"{path}, line {number}: no text in the field `text`")
        ratings = row.get("ratings")
        if not isinstance(ratings, list) or not ratings or not all(type(r) is int and abs(r) < MIDDLE for r in ratings):
            raise InputError(f"{path}, line {number}: no list of integers from {1 - MIDDLE} to {MIDDLE - 1} in the field `ratings`")
        rows.append({"text": row["text"], "ratings": ratings})
    return rows


READERS = {".txt": from_txt, ".jsonl": from_jsonl, ".tsv": from_tsv}


def read(path, readers=READERS):
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    name = path.name.removesuffix(".gz")
    reader = readers.get(Path(name).suffix)
    if reader is None:
        raise InputError(f"{path}: the name must end in {', '.join(readers)}, or one of these and .gz")
    try:
        rows = reader(path)
    except (UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: {error}") from error
    if not rows:
        raise InputError(f"{path}: no questions")
    return rows


def load_ratings(files, held_out, seed):
    """Returns the texts of `files` that `held_out` does not contain."""
    texts, others = ([row for path in paths for row in read(path, {".jsonl": rated})] for paths in (files, held_out))
    texts = without(texts, others)
    if len(texts) < RatedTexts.RUN:
        raise InputError(f"--train: {len(texts)} texts that are not in --validation, but training needs {RatedTexts.RUN}")
    return RatedTexts(texts, seed)


def load(dataset, files, split="train", seed=0, held_out=()):
    """Returns the questions of `files`, or generated questions. `held_out`: files with texts that `ratings` leaves out."""
    if dataset in GENERATED:
        if files:
            raise InputError(f"--dataset {dataset} generates its questions: omit --train and --validation")
        return GeneratedQuestions(GENERATED_COUNT, seed, split, GENERATED[dataset])
    if not files:
        raise InputError(f"--dataset {dataset} needs the files to train on: --train FILE")
    if dataset == "ratings":
        return load_ratings(files, held_out, seed)
    rows = [row for path in files for row in read(path)]
    if dataset == "gsm8k":
        for row in rows:
            row["answer"] = re.sub(r"<<[^>]*>>", "", row["answer"])
    return rows

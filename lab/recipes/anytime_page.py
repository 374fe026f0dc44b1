"""Writes the page that compares searches with samples of equal cost, from the answers that anytime.py keeps.

    anytime_page.py ANSWERS --page FILE

ANSWERS has a file MODEL.jsonl.gz for each model. The text above the mark in FILE stays, and the tables below it are replaced. Needs numpy.
"""

import argparse
from pathlib import Path

import numpy as np

from rows import read_rows
from tables import replace_below, table

MARK = "<!-- Below: written by lab/recipes/anytime_page.py. -->\n"
RESAMPLES = 2_000


class Errors:
    """Errors of means, in standard deviations of the number: arrays of questions and seeds."""

    def __init__(self, rows):
        self.search, self.samples = (self.of(rows, name) for name in ("searches", "sampled"))
        self.stated = np.array([[(found["standard_error"] or 0) / row["reference"]["std"] for found in row["searches"]] for row in rows])
        self.reference = np.array([(row["reference"]["standard_error"] or 0) / row["reference"]["std"] for row in rows])

    def of(self, rows, name):
        return np.array([[(found["mean"] - row["reference"]["mean"]) / row["reference"]["std"] for found in row[name]] for row in rows])

    def ratio(self, chosen):
        return rms(self.search[chosen]) / rms(self.samples[chosen])


def rms(errors):
    return float(np.sqrt(np.mean(np.square(errors))))


def interval(errors):
    """Returns the 95% interval of the ratio over resampled questions."""
    count = len(errors.search)
    draws = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    return np.quantile([errors.ratio(chosen) for chosen in draws], [0.025, 0.975])


def is_usable(row):
    """Returns whether all answers have a mean, and the model's numbers spread."""
    answers = [row["reference"], *row["searches"], *row["sampled"]]
    return all(answer["mean"] is not None for answer in answers) and row["reference"]["std"] > 0


def groups(rows):
    yield "all", rows
    for kind in dict.fromkeys(row["kind"] for row in rows):
        yield kind, [row for row in rows if row["kind"] == kind]


def error_table(name, rows):
    lines = []
    for label, group in groups(rows):
        errors = Errors(group)
        low, high = interval(errors)
        shares = [f"{rms(found):.4f}" for found in (errors.search, errors.stated, errors.samples, errors.reference)]
        ratio = f"{rms(errors.search) / rms(errors.samples):.2f} ({low:.2f} to {high:.2f})"
        lines.append([f"{name}, {label}", str(len(group)), *shares, ratio])
    header = ["", "questions", "error of the search", "its stated error", "error of samples", "stated error of the reference", "search / samples"]
    return table(header, lines)


def cost_table(name, rows):
    lines = []
    for label, group in groups(rows):
        searches = [found for row in group for found in row["searches"]]
        drawn = [found for row in group for found in row["sampled"]]
        cells = [np.mean([row["greedy_tokens"] for row in group]), np.mean([found["positions"] for found in searches])]
        cells += [np.mean([found["positions"] for found in drawn]), np.mean([row["samples"] for row in group])]
        cells.append(np.mean([row["reference"]["positions"] for row in group]))
        masses = [np.mean([found["open"] for found in searches]), np.mean([row["reference"]["open"] for row in group])]
        lines.append([f"{name}, {label}", *(f"{cell:.0f}" for cell in cells), *(f"{mass:.3f}" for mass in masses)])
    header = ["", "tokens of a greedy answer", "positions of a search", "positions of the samples", "samples", "positions of the reference"]
    return table([*header, "open mass after a search", "open mass after the reference"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("answers", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args()
    models = {path.name.removesuffix(".jsonl.gz"): read_rows(path) for path in sorted(arguments.answers.glob("*.jsonl.gz"))}
    usable = {name: [row for row in rows if is_usable(row)] for name, rows in models.items()}
    parts = ["## Errors of the mean\n\nRoot mean squares over questions and three seeds, in standard deviations of the number.\n"]
    parts += [error_table(name, rows) for name, rows in usable.items()]
    parts += ["## Cost\n\nMeans over questions and seeds.\n", *(cost_table(name, rows) for name, rows in usable.items())]
    for name, rows in models.items():
        if len(usable[name]) < len(rows):
            parts.append(f"{name}: {len(rows) - len(usable[name])} of {len(rows)} questions are left out, because an answer has no mean.\n")
    replace_below(MARK, arguments.page, "\n".join(parts))


if __name__ == "__main__":
    main()

"""Writes the page that compares a model's ratings with people's, from the samples that people.py keeps.

    people_page.py SAMPLES TRAIN_DATA --page FILE

The text above the mark in FILE stays, and the tables below it are replaced. Needs numpy and scipy.
"""

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

SCORES = np.arange(1, 10)
MIDDLE = 5
MARK = "<!-- Below: written by recipes/people_page.py. -->\n"
RESAMPLES = 2_000
FOLDS = 5
COVERAGE = 0.9
READINGS = {"mean": "mean", "median": "median", "mode": "mode", "one_token": "one token", "greedy": "greedy text"}


class Run:
    """One set of texts with one prompt: arrays over the texts."""

    def __init__(self, path):
        with gzip.open(path, "rt") as lines:
            samples = [json.loads(line) for line in lines]
        self.name, _, self.prompt = path.name.removesuffix(".jsonl.gz").partition("-")
        self.people = np.array([histogram(sample["ratings"]) for sample in samples])
        self.model = np.array([normalised(sample["distribution"]) for sample in samples])
        self.closed = np.array([sample["mass_closed"] for sample in samples])
        self.truth = self.people @ SCORES
        self.written = np.array([sample["greedy"] is not None for sample in samples])
        below = np.cumsum(self.model, axis=1)
        self.readings = {
            "mean": self.model @ SCORES,
            "median": SCORES[(below >= 0.5).argmax(axis=1)].astype(float),
            "mode": SCORES[self.model.argmax(axis=1)].astype(float),
            "one_token": given(samples, "one_token"),
            "greedy": given(samples, "greedy"),
        }


def histogram(ratings):
    return np.array([ratings.count(score) for score in SCORES]) / len(ratings)


def normalised(distribution):
    return np.array(distribution) / sum(distribution)


def given(samples, field):
    """Returns a reading of the text, which is the middle of the scale if the text has no score."""
    return np.array([MIDDLE if sample[field] is None else sample[field] for sample in samples], dtype=float)


def pearson(predicted, truth):
    """Returns the correlations along the last axis; 0 for constants."""
    x, y = (values - values.mean(axis=-1, keepdims=True) for values in (predicted, truth))
    scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    return np.divide((x * y).sum(axis=-1), scale, out=np.zeros_like(scale), where=scale > 1e-12)


def spearman(predicted, truth):
    return pearson(rankdata(predicted, axis=-1), rankdata(truth, axis=-1))


def mapped_rmse(predicted, truth):
    """Returns the RMSE after a linear map that is fitted on the other folds."""
    fold = np.arange(len(truth)) % FOLDS
    errors = np.empty_like(truth)
    for number in range(FOLDS):
        rest, here = fold != number, fold == number
        design = np.stack([predicted, np.ones_like(predicted)], axis=1)
        errors[here] = design[here] @ np.linalg.lstsq(design[rest], truth[rest], rcond=None)[0] - truth[here]
    return np.sqrt((errors**2).mean())


def resampled(run, correlation):
    """Returns the correlations of every reading on the same resamples of the texts."""
    chosen = np.random.default_rng(0).integers(0, len(run.truth), (RESAMPLES, len(run.truth)))
    return {name: correlation(values[chosen], run.truth[chosen]) for name, values in run.readings.items()}


def lead(mean, other):
    """Returns the interval of the lead of the mean over another reading, and its two-sided p-value."""
    low, high = np.quantile(mean - other, [0.025, 0.975])
    beyond = min((mean <= other).mean(), (mean >= other).mean())
    return low, high, min(1.0, 2 * max(beyond, 1 / len(mean)))


def crps(distribution, people):
    """Returns the CRPS of distributions against a rating, as the mean over the people's ratings of each text.

    It is the sum over the scores of (F(x) - 1[rating <= x])^2, whose mean over ratings is F^2 - 2 F G + G with the people's G.
    """
    model, rated = (np.cumsum(values, axis=-1) for values in (distribution, people))
    return (model**2 - 2 * model * rated + rated).sum(axis=-1)


def energy_distance(distribution, people):
    """Returns 2 E|X - Y| - E|X - X'| - E|Y - Y'|, which is twice the squared distance of the distribution functions."""
    return 2 * ((np.cumsum(distribution, axis=-1) - np.cumsum(people, axis=-1)) ** 2).sum(axis=-1)


def covered(distribution, people):
    """Returns the share of the ratings within the central interval of each distribution."""
    below = np.cumsum(distribution, axis=-1)
    low = (below > (1 - COVERAGE) / 2).argmax(axis=-1)
    high = (below >= (1 + COVERAGE) / 2 - 1e-9).argmax(axis=-1)
    within = (np.arange(len(SCORES)) >= low[..., None]) & (np.arange(len(SCORES)) <= high[..., None])
    return (people * within).sum(axis=-1)


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def correlations(runs, correlation):
    rows = []
    for run in runs:
        found, again = {name: correlation(values, run.truth) for name, values in run.readings.items()}, resampled(run, correlation)
        best = max(found, key=found.get)
        cells = []
        for name, value in found.items():
            low, high = np.quantile(again[name], [0.025, 0.975])
            constant = np.ptp(run.readings[name]) == 0
            text = "always the same" if constant else f"{value:.3f} ({low:.3f} to {high:.3f})"
            cells.append(f"**{text}**" if name == best else text)
        rows.append([f"{run.name}, {run.prompt}", *cells])
    return table(["", *READINGS.values()], rows)


def leads(runs):
    rows = []
    for run in runs:
        again, cells = resampled(run, pearson), []
        for name in list(READINGS)[1:]:
            low, high, p = lead(again["mean"], again[name])
            cells.append(f"{low:+.3f} to {high:+.3f}, p {p:.3g}")
        rows.append([f"{run.name}, {run.prompt}", *cells])
    return table(["", *list(READINGS.values())[1:]], rows)


def errors(runs):
    rows = []
    for run in runs:
        cells = [f"{mapped_rmse(values, run.truth):.3f}" for values in run.readings.values()]
        constant = mapped_rmse(np.zeros_like(run.truth), run.truth)
        rows.append([f"{run.name}, {run.prompt}", *cells, f"{constant:.3f}", f"{run.closed.mean():.2f}", f"{run.written.mean():.2f}"])
    return table(["", *READINGS.values(), "constant", "closed mass", "text begins with a score"], rows)


def marginal(data, name):
    """Returns the distribution of all ratings of the training split."""
    with gzip.open(data / f"{name}-train.jsonl.gz", "rt") as lines:
        ratings = [rating + MIDDLE for line in lines for rating in json.loads(line)["ratings"]]
    return histogram(ratings)


def distributions(runs, data):
    rows = []
    for run in runs:
        always = np.broadcast_to(marginal(data, run.name), run.people.shape)
        for label, distribution in [(run.prompt, run.model), ("always all training ratings", always), ("the people", run.people)]:
            figures = [score(distribution, run.people).mean() for score in (crps, energy_distance, covered)]
            row = [f"{run.name}, {label}", *(f"{figure:.3f}" for figure in figures)]
            if row not in rows:
                rows.append(row)
    return table(["", "CRPS", "energy distance", f"coverage of {COVERAGE:.0%}"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args()
    runs = [Run(path) for path in sorted(arguments.samples.glob("*.jsonl.gz"))]
    parts = [
        "## Pearson correlation with the people's mean\n",
        correlations(runs, pearson),
        "## Lead of the mean over other readings\n\nThe 95% interval of the difference in Pearson correlation, and its p-value.\n",
        leads(runs),
        "## Spearman correlation\n",
        correlations(runs, spearman),
        "## RMSE after a linear map\n\nThe map is fitted on four fifths of the texts and applied to the others.\n",
        errors(runs),
        "## The model's distribution and the people's\n",
        distributions(runs, arguments.data),
    ]
    before = arguments.page.read_text().partition(MARK)[0] if arguments.page.is_file() else ""
    arguments.page.write_text(before + MARK + "\n" + "\n".join(parts))


if __name__ == "__main__":
    main()

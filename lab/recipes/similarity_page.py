"""Writes the page that compares a model's scores of similarity with people's, from the answers that similarity.py keeps.

    similarity_page.py ANSWERS FOLDER --page FILE

ANSWERS has a file MODEL.jsonl.gz for each model. FOLDER has the pairs of words (`similarity.py pairs FOLDER`). The text
above the mark in FILE stays, and the tables below it are replaced. Needs numpy and scipy.
"""

import argparse
import math
from pathlib import Path

import numpy as np

from people_scores import lead, resampled, rmse, spearman
from rows import read_rows
from similarity import HIGH, LOW, SETS, pairs_of
from tables import p_value, replace_below, table

MARK = "<!-- Below: written by lab/recipes/similarity_page.py. -->\n"
SCORES = np.arange(LOW, HIGH + 1)
READINGS = ("mean", "median", "mode", "greedy text", "deepeval", "one token")
# deepeval leaves out less probable tokens.
DEEPEVAL_PROBABILITY_MIN = 0.01


def deepeval_score(greedy, tokens):
    """Returns the score that deepeval 4.3.1 computes: the mean over the alternatives of the token that is the score.

    A score of several tokens has no such token, and stays as it is.
    """
    written = str(int(greedy))
    alternatives = next((found for token, found in reversed(tokens) if token == written), None)
    if not alternatives:
        return greedy
    sums = {}
    for text, logprob in alternatives:
        if math.exp(logprob) >= DEEPEVAL_PROBABILITY_MIN and text.isdecimal():
            sums[int(text)] = sums.get(int(text), 0) + math.exp(logprob)
    total = sum(sums.values())
    return sum(score * p for score, p in sums.items()) / total if total else greedy


def verifier_score(alternatives, scores):
    """Returns the mean over the alternatives of one token as llm-verifier 0.3.0 computes it, or None if none is a score.

    Only the most probable spelling of a score counts.
    """
    found = {}
    for text, logprob in alternatives:
        if text.strip() in scores:
            score = scores[text.strip()]
            found[score] = max(found.get(score, 0), math.exp(logprob))
    return sum(score * p for score, p in found.items()) / sum(found.values()) if found else None


def readings_of(line):
    probabilities = dict(line["distribution"])
    distribution = np.array([probabilities.get(score, 0.0) for score in SCORES])
    distribution /= distribution.sum()
    middle = (LOW + HIGH) / 2
    greedy = middle if line["greedy"] is None else line["greedy"]
    digits = verifier_score(line["tokens"][0][1], {str(score): score for score in SCORES})
    return [
        distribution @ SCORES,
        SCORES[np.searchsorted(np.cumsum(distribution), 0.5 - 1e-9)],
        SCORES[distribution.argmax()],
        greedy,
        deepeval_score(greedy, line["tokens"]),
        greedy if digits is None else digits,
    ]


class Run:
    """One model's readings of the pairs of one set."""

    def __init__(self, model, name, pairs, lines):
        self.label, lines = f"{model}, {name}", [line for line in lines if line["key"].startswith(name)]
        self.truth = np.array([pairs[int(line["key"].split()[1])][2] for line in lines])
        self.readings = dict(zip(READINGS, np.array([readings_of(line) for line in lines]).T.astype(float)))
        self.ten = np.array([dict(line["distribution"]).get(10, 0.0) for line in lines])
        self.closed = np.mean([line["mass_closed"] for line in lines])
        self.without = sum(line["greedy"] is None for line in lines)


def correlations(runs):
    rows = []
    for run in runs:
        again = resampled(run.readings, run.truth, spearman)
        cells = []
        for name, values in run.readings.items():
            low, high = np.quantile(again[name], [0.025, 0.975])
            cells.append("always the same" if np.ptp(values) == 0 else f"{spearman(values, run.truth):.3f} ({low:.3f} to {high:.3f})")
        rows.append([run.label, str(len(run.truth)), *cells])
    return table(["", "pairs", *READINGS], rows)


def leads(runs):
    rows = []
    for run in runs:
        again = resampled(run.readings, run.truth, spearman)
        cells = []
        for name in READINGS[1:]:
            low, high, p, is_bound = lead(again["mean"], again[name])
            between = spearman(run.readings["mean"], run.truth) - spearman(run.readings[name], run.truth)
            cells.append(f"{between:+.3f} ({low:+.3f} to {high:+.3f}), p {p_value(p, is_bound)}")
        rows.append([run.label, *cells])
    return table(["", *READINGS[1:]], rows)


def errors(runs):
    """Returns the RMSE of every reading, the probability of 10, how far readings of one token are from the mean, and the mass."""
    rows = []
    for run in runs:
        found = [f"{rmse(values, run.truth):.2f}" for values in run.readings.values()]
        apart = [f"{np.abs(run.readings['mean'] - run.readings[name]).mean():.2f}" for name in ("deepeval", "one token")]
        ten = f"{run.ten.mean():.3f} ({run.ten.max():.3f})"
        rows.append([run.label, *found, f"{run.truth.std():.2f}", ten, *apart, f"{run.closed:.2f}", str(run.without)])
    others = ["probability of 10 (largest)", "deepeval: distance from the mean", "one token: distance from the mean"]
    return table(["", *READINGS, "people's overall mean", *others, "closed mass", "greedy texts without a score"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("answers", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args()
    pairs = {name: pairs_of(arguments.folder, name) for name in SETS}
    runs = []
    for path in sorted(arguments.answers.glob("*.jsonl.gz")):
        lines = read_rows(path)
        runs += [Run(path.name.removesuffix(".jsonl.gz"), name, pairs[name], lines) for name in SETS]
    parts = [
        "## Spearman correlation with people's means\n",
        correlations(runs),
        "## Lead of the mean over other readings\n\nDifference of Spearman's correlation, its 95% interval over resampled pairs, and its p-value.\n",
        leads(runs),
        "## RMSE, and the score 10\n",
        errors(runs),
    ]
    replace_below(MARK, arguments.page, "\n".join(parts))


if __name__ == "__main__":
    main()

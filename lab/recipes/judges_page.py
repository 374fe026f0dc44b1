"""Writes the page that compares judges with people's ratings, from the samples that people.py keeps.

    judges_page.py ANSWERS --page FILE

ANSWERS has a directory for each model. The text above the mark in FILE stays, and the tables below it are replaced.
Needs numpy and scipy.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from people_page import READINGS, Run, correlations, pooled, samples_of
from people_scores import lead, pearson, resampled, spearman
from tables import p_value, replace_below, table

MARK = "<!-- Below: written by lab/recipes/judges_page.py. -->\n"
OTHERS = ("median", "mode", "one_token", "greedy")


def leads(runs, measure):
    """Returns the measure of the mean minus that of other readings, with intervals and p-values."""
    rows = []
    for run in runs:
        again, cells = resampled(run.readings, run.truth, measure), []
        for name in OTHERS:
            low, high, p, is_bound = lead(again["mean"], again[name])
            between = measure(run.readings["mean"], run.truth) - measure(run.readings[name], run.truth)
            cells.append(f"{between:+.3f} ({low:+.3f} to {high:+.3f}), p {p_value(p, is_bound)}")
        rows.append([f"{run.name}, {run.prompt}", *cells])
    return table(["", *(READINGS[name] for name in OTHERS)], rows)


def answers_of(runs):
    """Returns how the answers are spread: the mass on the scale, and the share of the most frequent greedy text."""
    rows = []
    for run in runs:
        _, counts = np.unique(run.readings["greedy"], return_counts=True)
        cells = [f"{run.closed.mean():.2f}", f"{run.written.mean():.2f}", f"{counts.max() / counts.sum():.2f}"]
        rows.append([f"{run.name}, {run.prompt}", str(len(run.truth)), *cells])
    return table(["", "texts", "closed mass", "text begins with a score", "share of the most frequent greedy score"], rows)


def parts_of(folder):
    files = sorted((samples_of(path) for path in folder.glob("*.jsonl.gz")), key=lambda file: (file[1], file[0]))
    sets = Counter(prompt for _, prompt, _ in files)
    runs = [run for run in pooled(files) if sets[run.prompt] > 1] + [Run(*file) for file in files]
    return [
        f"## {folder.name}: Pearson correlation with people's means\n",
        correlations(runs, pearson),
        f"## {folder.name}: Spearman correlation with people's means\n",
        correlations(runs, spearman),
        f"## {folder.name}: lead of the mean in Pearson correlation\n\nWith 95% intervals over resampled texts.\n",
        leads(runs, pearson),
        f"## {folder.name}: the answers\n",
        answers_of(runs),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("answers", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args()
    folders = sorted(folder for folder in arguments.answers.iterdir() if folder.is_dir())
    replace_below(MARK, arguments.page, "\n".join(part for folder in folders for part in parts_of(folder)))


if __name__ == "__main__":
    main()

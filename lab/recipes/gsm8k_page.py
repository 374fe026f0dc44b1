"""Writes the page about GSM8K from the answers that gsm8k.py keeps.

    gsm8k_page.py ANSWERS --page FILE

The text above the mark in FILE stays, and the tables below it are replaced. ANSWERS/risk-coverage.svg gets the picture. Needs numpy.
"""

import argparse
import re
from functools import partial
from pathlib import Path

import numpy as np

from gsm8k_scores import BINS, averaged, bootstrap, brier, calibration_error, kept_accuracy, mean, mode_of
from pictures import curves
from rows import read_rows
from tables import replace_below, table

MARK = "<!-- Below: written by lab/recipes/gsm8k_page.py. -->\n"
SCORES = {"accuracy": "by value", "strict": "strict", "flexible": "flexible"}
# The shares of the answers that are kept.
COVERAGES = (1.0, 0.9, 0.7, 0.5)
POINTS = 20
RESULT = re.compile(r"#### \$?(-?[0-9][0-9,]*(?:\.[0-9]+)?)")


class Model:
    """The answers of one model: `texts` by question, and for each sampled solution `samples` by question."""

    def __init__(self, name, texts, samples):
        self.name, self.texts, self.samples = name, texts, samples
        self.truths = {item: row["truth"] for item, row in (samples[0] if samples else texts).items()}

    def groups(self, size):
        """Returns the samples in groups of `size`, without a last group that is smaller."""
        return [self.samples[start : start + size] for start in range(0, len(self.samples) - size + 1, size)]

    def sizes(self):
        """Returns the numbers of samples that a mean is taken over: 1, 2, 4 and so on."""
        return [2**power for power in range(len(self.samples).bit_length())]


class Selection:
    """Answers with confidences: arrays of shape [groups, questions]."""

    def __init__(self, answers, truths):
        self.confidence = np.array([[confidence for _, confidence in row] for row in answers]).T
        self.correct = np.array([[value == truth for value, _ in row] for row, truth in zip(answers, truths)], dtype=float).T

    def mean(self, measure):
        """Returns the mean of a measure over the groups, with its interval over resampled questions."""
        return float(measure(self.confidence, self.correct).mean()), *bootstrap(measure, self.confidence, self.correct)


def distribution_of(row):
    return None if row["support"] is None else dict(map(tuple, row["support"]))


def stated(row):
    """Returns the number after the first `#### ` of a text, and otherwise its last number. Texts may continue after the result."""
    result = RESULT.search(row["text"])
    return float(result[1].replace(",", "")) if result else row["number"]


def score(row, name):
    """Returns 1 for a correct text and 0 for another one."""
    return float(stated(row) == row["truth"] if name == "accuracy" else row[name])


def modes(model, size):
    """Returns the modes of the distributions that are averaged over `size` solutions, with their probabilities."""
    answers = []
    for item in model.truths:
        answers.append([mode_of(averaged(distribution_of(sample[item]) for sample in group)) for group in model.groups(size)])
    return Selection(answers, model.truths.values())


def votes(model, size):
    """Returns the most frequent of the single modes, with its share of the solutions that have a number."""
    groups, answers = model.groups(size), []
    for item in model.truths:
        row = []
        for group in groups:
            found = [mode_of(distribution_of(sample[item]))[0] for sample in group]
            row.append(mode_of(averaged({value: 1.0} for value in found if value is not None)))
        answers.append(row)
    return Selection(answers, model.truths.values())


def greedy(model, size):
    """Returns the number of the greedy text, with its probability in the distribution that is averaged over `size` solutions."""
    answers = []
    for item in model.truths:
        number = stated(model.texts[item])
        found = [averaged(distribution_of(sample[item]) for sample in group) for group in model.groups(size)]
        answers.append([(number, distribution.get(number, 0.0)) for distribution in found])
    return Selection(answers, model.truths.values())


READINGS = {"mode of the mean distribution": modes, "vote of the modes": votes, "greedy text, by its probability in the mean distribution": greedy}


def selections(models):
    """Yields the model, the reading, the number of solutions and the answers of each."""
    for model in models:
        for size in model.sizes():
            for reading, function in READINGS.items():
                if (size > 1 or function is not votes) and (function is not greedy or size == model.sizes()[-1]):
                    yield model, reading, size, function(model, size)


def cell(figures, digits=3):
    value, low, high = (f"{figure:.{digits}f}" for figure in figures)
    return f"{value} ({low} to {high})"


def text_table(models):
    rows = []
    for model in models:
        scores = {name: np.array([score(row, name) for row in model.texts.values()]) for name in SCORES}
        unread = sum(stated(row) is None for row in model.texts.values())
        cells = [cell((scores[name].mean(), *bootstrap(mean, scores[name]))) for name in SCORES]
        rows.append([model.name, str(len(model.texts)), *cells, str(unread)])
    return table(["", "questions", *SCORES.values(), "without a number"], rows)


def difference_table(models):
    """Compares the greedy texts of every pair of models on the questions that both answered."""
    rows = []
    for index, first in enumerate(models):
        for second in models[:index]:
            shared = sorted(first.texts.keys() & second.texts.keys())
            for name, label in SCORES.items():
                gap = np.array([score(first.texts[item], name) - score(second.texts[item], name) for item in shared])
                counts = [str(int((gap == sign).sum())) for sign in (1, -1)]
                rows.append([f"{first.name} minus {second.name}, {label}", str(len(shared)), cell((gap.mean(), *bootstrap(mean, gap))), *counts])
    return table(["", "questions", "difference", "only the first correct", "only the second correct"], rows)


def calibration_table(found):
    rows = []
    for model, reading, size, selection in found:
        cells = [selection.mean(lambda _, correct: mean(correct)), selection.mean(lambda confidence, _: mean(confidence))]
        cells += [selection.mean(brier), selection.mean(calibration_error)]
        rows.append([f"{model.name}, {reading}", str(size), str(selection.correct.shape[-1]), *map(cell, cells)])
    return table(["", "solutions", "questions", "accuracy", "mean probability", "Brier score", "calibration error"], rows)


def coverage_table(found):
    rows = []
    for model, reading, size, selection in found:
        cells = [cell(selection.mean(partial(kept_accuracy, coverage=coverage))) for coverage in COVERAGES]
        rows.append([f"{model.name}, {reading}", str(size), *cells])
    return table(["", "solutions", "all answers", *(f"without the least certain {1 - coverage:.0%}" for coverage in COVERAGES[1:])], rows)


def reliability_table(found):
    """Returns the accuracy by bin of the mode's probability, over all groups."""
    rows = []
    for model, reading, size, selection in found:
        if reading != next(iter(READINGS)):
            continue
        confidence, correct = selection.confidence.ravel(), selection.correct.ravel()
        places = np.minimum((confidence * BINS).astype(int), BINS - 1)
        for place in range(BINS):
            here = places == place
            if here.any():
                label = f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}"
                rows.append([f"{model.name}, {size}", label, str(int(here.sum())), f"{confidence[here].mean():.3f}", f"{correct[here].mean():.3f}"])
    return table(["model, solutions", "probability", "answers", "mean probability", "accuracy"], rows)


def agreement_table(models):
    """Compares the number in the greedy text with the mode of the distribution that is averaged over all solutions."""
    rows = []
    for model in models:
        size, counts = model.sizes()[-1], dict.fromkeys(("same, correct", "same, incorrect", "only the mode", "only the text", "different, both incorrect"), 0)
        for item, truth in model.truths.items():
            mode = mode_of(averaged(distribution_of(sample[item]) for sample in model.samples[:size]))[0]
            text = stated(model.texts[item])
            if mode == text:
                counts["same, correct" if mode == truth else "same, incorrect"] += 1
            elif truth in (mode, text):
                counts["only the mode" if mode == truth else "only the text"] += 1
            else:
                counts["different, both incorrect"] += 1
        rows.append([model.name, str(size), *map(str, counts.values())])
    return table(["", "solutions", "same, correct", "same, incorrect", "only the mode correct", "only the text correct", "different, both incorrect"], rows)


def mass_table(models):
    rows = []
    for model in models:
        found = [sample[item] for sample in model.samples for item in model.truths]
        reached = [row for row in found if row["support"] is not None]
        tops = [mode_of(distribution_of(row))[1] for row in reached]
        shares = [np.mean([row["closed"] for row in reached]), np.mean([top >= 0.99 for top in tops])]
        rows.append([model.name, str(len(found)), str(len(found) - len(reached)), *(f"{share:.3f}" for share in shares)])
    return table(["", "sampled solutions", "without `#### `", "closed mass", "share whose mode has at least 0.99"], rows)


def picture(found):
    lines = {}
    for model, reading, size, selection in found:
        if reading == next(iter(READINGS)) and size in (1, model.sizes()[-1]):
            points = []
            for step in range(POINTS // 4, POINTS + 1):
                coverage = step / POINTS
                points.append((coverage, float(kept_accuracy(selection.confidence, selection.correct, coverage).mean())))
            lines[f"{model.name}, {size} solution{'s' * (size > 1)}"] = points
    return curves("GSM8K: accuracy of the most certain answers", lines, "share of the questions that are answered", "accuracy")


def read_answers(path):
    return {row["id"]: row for row in read_rows(path)}


def models_of(folder):
    """Returns the models whose answers are kept, the smallest first. Only questions that every sample has count."""
    found = []
    for path in sorted(folder.glob("*-text.jsonl.gz")):
        name = path.name.removesuffix("-text.jsonl.gz")
        paths = sorted(folder.glob(f"{name}-sample-*.jsonl.gz"), key=lambda path: int(path.name.removesuffix(".jsonl.gz").rpartition("-")[2]))
        samples = [read_answers(path) for path in paths]
        shared = set.intersection(*map(set, samples)) if samples else set()
        found.append(Model(name, read_answers(path), [{item: sample[item] for item in sorted(shared)} for sample in samples]))
    return found


def page(models, picture_name):
    parts = ["## Greedy text\n", text_table(models)]
    if len(models) > 1:
        parts.append(difference_table(models))
    sampled = [model for model in models if model.samples]
    if sampled:
        found = list(selections(sampled))
        parts += [
            "## Answers with a probability: calibration\n",
            calibration_table(found),
            "## Accuracy of the most certain answers\n",
            f"![Accuracy by the share of the questions that are answered]({picture_name})\n",
            coverage_table(found),
            "## Reliability of the mode's probability\n",
            reliability_table(found),
            "## Mode and greedy text\n",
            agreement_table(sampled),
            "## The single distributions\n",
            mass_table(sampled),
        ]
        return "\n".join(parts), picture(found)
    return "\n".join(parts), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("answers", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args()
    drawing = arguments.answers / "risk-coverage.svg"
    text, drawn = page(models_of(arguments.answers), f"{arguments.answers.name}/{drawing.name}")
    if drawn is not None:
        drawing.write_text(drawn, encoding="utf-8")
    replace_below(MARK, arguments.page, text)


if __name__ == "__main__":
    main()

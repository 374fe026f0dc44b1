"""Writes the page that compares a model's numbers for phrases with people's, from the answers that phrases.py keeps.

    phrases_page.py ANSWERS --page FILE

ANSWERS has people.jsonl and a file MODEL.jsonl.gz for each model. The text above the mark in FILE stays, and the tables
below it are replaced. ANSWERS/MODEL.svg gets the picture of the probabilities. Needs numpy and scipy.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr, wasserstein_distance

from phrases import LIMITS, PROMPTS
from pictures import strips
from rows import read_rows
from tables import replace_below, table

MARK = "<!-- Below: written by lab/recipes/phrases_page.py. -->\n"
COVERAGE = 0.9
RESAMPLES = 10_000
# Bins of the picture.
BINS = 51
KINDS = {"probability": "Probabilities", "quantity": "Quantities"}
# How numbers are compared: percentage points, and powers of ten.
UNITS = {"probability": lambda values: values, "quantity": lambda values: np.log10(np.maximum(values, 1))}
DISTRIBUTIONS = ("exact distribution", "16 samples")
POINTS = ("mean", "median", "mode", "greedy text")


class Forecast:
    """A distribution of finitely many values, in the units of its kind."""

    def __init__(self, values, weights=None):
        order = np.argsort(values, kind="stable")
        self.values = np.asarray(values, dtype=float)[order]
        weights = np.ones(len(order)) if weights is None else np.asarray(weights, dtype=float)[order]
        self.weights = weights / weights.sum()

    def quantile(self, share):
        return self.values[min(np.searchsorted(np.cumsum(self.weights), share - 1e-9), len(self.values) - 1)]

    def crps(self, answers):
        """Returns the mean over the answers of E|X - y| - E|X - X'| / 2."""
        far = np.abs(self.values[:, None] - np.asarray(answers)[None, :])
        apart = np.abs(self.values[:, None] - self.values[None, :])
        return float(self.weights @ far.mean(axis=1) - self.weights @ apart @ self.weights / 2)

    def distance(self, answers):
        """Returns Wasserstein's distance from the distribution of the answers."""
        return float(wasserstein_distance(self.values, answers, self.weights))

    def covered(self, answers):
        """Returns the share of the answers within the central interval."""
        low, high = (self.quantile(share) for share in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
        return float(((answers >= low - 1e-9) & (answers <= high + 1e-9)).mean())


def forecasts_of(kind, line):
    """Returns the forecasts of an answer by the name of the reading. A text without a number counts as the middle of the limits."""
    units, limits = UNITS[kind], np.array(LIMITS[kind], dtype=float)
    middle = units(limits).mean()
    values, weights = np.array(line["distribution"]).T
    exact = Forecast(units(values), weights)
    drawn = [value for value in line["samples"] if value is not None]
    return {
        "exact distribution": exact,
        "16 samples": Forecast(units(np.array(drawn))) if drawn else Forecast([middle]),
        "mean": Forecast([exact.weights @ exact.values]),
        "median": Forecast([exact.quantile(0.5)]),
        "mode": Forecast([exact.values[exact.weights.argmax()]]),
        "greedy text": Forecast([middle if line["greedy"] is None else units(np.array(line["greedy"]))]),
    }


def uniform(kind):
    """Returns the uniform distribution over the limits, of quantities over the powers of ten."""
    low, high = UNITS[kind](np.array(LIMITS[kind], dtype=float))
    return Forecast(np.linspace(low, high, 501))


def scores(forecast, answers):
    return np.array([forecast.crps(answers), forecast.distance(answers), forecast.covered(answers)])


def baselines(kind, people):
    """Returns the scores of each baseline for each phrase: arrays of phrases and scores."""
    units = {phrase: UNITS[kind](np.array(answers)) for phrase, answers in people.items()}
    others = {phrase: np.concatenate([values for other, values in units.items() if other != phrase]) for phrase in units}
    one_left_out = [
        np.mean([scores(Forecast(np.delete(values, index)), values[index : index + 1]) for index in range(len(values))], axis=0)
        for values in units.values()
    ]
    same = uniform(kind)
    return {
        "uniform": np.array([scores(same, values) for values in units.values()]),
        "answers to other phrases": np.array([scores(Forecast(others[phrase]), values) for phrase, values in units.items()]),
        "the other people": np.array(one_left_out),
    }


def studentised(values):
    """Returns the 95% interval of a mean by the studentised bootstrap."""
    values = np.asarray(values)
    if np.ptp(values) < 1e-12:
        return values.mean(), values.mean()
    chosen = values[np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))]
    errors = chosen.std(axis=1, ddof=1)
    usual = errors > 1e-12
    spread = (chosen.mean(axis=1)[usual] - values.mean()) / errors[usual]
    low, high = np.quantile(spread, [0.025, 0.975]) * values.std(ddof=1)
    return values.mean() - high, values.mean() - low


def with_interval(values, digits, sign=""):
    low, high = studentised(values)
    return f"{np.mean(values):{sign}.{digits}f} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


class Model:
    """The forecasts of a model for one kind of phrases, by prompt, phrase and reading."""

    def __init__(self, name, kind, people, lines):
        self.name, self.kind = name, kind
        self.lines = [line for line in lines if line["phrase"] in people]
        self.prompts = list(dict.fromkeys(line["prompt"] for line in self.lines))
        self.forecasts = {(line["prompt"], line["phrase"]): forecasts_of(kind, line) for line in self.lines}
        answers = {phrase: UNITS[kind](np.array(values)) for phrase, values in people.items()}
        self.medians = np.array([np.median(values) for values in answers.values()])
        # Arrays of prompts, phrases and scores.
        self.scores = {
            reading: np.array(
                [[scores(self.forecasts[prompt, phrase][reading], answers[phrase]) for phrase in answers] for prompt in self.prompts]
            )
            for reading in DISTRIBUTIONS + POINTS
        }
        self.points = {
            reading: np.array([[self.forecasts[prompt, phrase][reading].quantile(0.5) for phrase in answers] for prompt in self.prompts])
            for reading in POINTS
        }

    def of_phrases(self, reading, score):
        """Returns a score of each phrase, averaged over the prompts."""
        return self.scores[reading][:, :, score].mean(axis=0)


def overview(kind, models, base, digits):
    rows = []
    for model in models:
        for reading in DISTRIBUTIONS + POINTS:
            crps, distance, covered = (model.of_phrases(reading, score) for score in range(3))
            width = [f"{distance.mean():.{digits}f}", f"{covered.mean():.2f}"] if reading in DISTRIBUTIONS else ["as CRPS", ""]
            ranks = []
            if reading in POINTS:
                ranks = [spearmanr(points, model.medians).statistic for points in model.points[reading]]
            rank = " / ".join("constant" if np.isnan(found) else f"{found:.2f}" for found in ranks)
            rows.append([f"{model.name}, {reading}", with_interval(crps, digits), *width, rank])
    for name, found in base.items():
        is_left_out = name == "the other people"
        width = ["", ""] if is_left_out else [f"{found[:, 1].mean():.{digits}f}", f"{found[:, 2].mean():.2f}"]
        rows.append([name, with_interval(found[:, 0], digits), *width, ""])
    header = ["", "CRPS", "Wasserstein distance", f"coverage of {COVERAGE:.0%}", "Spearman correlation with people's medians, by prompt"]
    return table(header, rows)


def comparisons(models, base, digits):
    """Returns the CRPS of the exact distribution minus that of other forecasts, over the phrases."""
    rows = []
    for model in models:
        exact = model.of_phrases("exact distribution", 0)
        others = {reading: model.of_phrases(reading, 0) for reading in ("16 samples", "mean", "median", "mode", "greedy text")}
        others |= {name: found[:, 0] for name, found in base.items()}
        for name, other in others.items():
            better = int((exact < other).sum())
            rows.append([f"{model.name}, against {name}", with_interval(exact - other, digits, "+"), f"{better} of {len(exact)}"])
        for reading in ("mean", "median"):
            first, second = (model.of_phrases(name, 0) for name in (reading, "greedy text"))
            label = f"{model.name}, {reading} against greedy text"
            rows.append([label, with_interval(first - second, digits, "+"), f"{int((first < second).sum())} of {len(first)}"])
    return table(["", "CRPS, difference", "phrases with a lower CRPS"], rows)


def by_prompt(models, digits):
    rows = []
    for model in models:
        for index, prompt in enumerate(model.prompts):
            lines = [line for line in model.lines if line["prompt"] == prompt]
            found = [f"{model.scores[name][index, :, 0].mean():.{digits}f}" for name in DISTRIBUTIONS + POINTS]
            closed = np.mean([line["mass"]["closed"] for line in lines])
            unexplored = np.max([line["mass"]["open"] for line in lines])
            without = sum(line["greedy"] is None for line in lines)
            drawn = np.mean([value is None for line in lines for value in line["samples"]])
            covered = f"{model.scores['exact distribution'][index, :, 2].mean():.2f}"
            other = int((np.abs(model.points["greedy text"][index] - model.points["mode"][index]) > 1e-9).sum())
            shares = [f"{closed:.2f}", f"{unexplored:.3f}", str(without), f"{drawn:.2f}"]
            rows.append([f"{model.name}, {prompt}", *found, covered, str(other), *shares])
    masses = ["coverage of the exact distribution", "greedy texts that are not the mode", "closed mass", "largest open mass", "greedy texts without a number", "samples without one"]
    return table(["", *(f"CRPS, {name}" for name in DISTRIBUTIONS + POINTS), *masses], rows)


def by_phrase(models, people, kind, digits):
    header, rows = ["", "people's median"], []
    for model in models:
        header += [f"{model.name}: median, by prompt", "CRPS, exact", "CRPS, greedy text"]
    for index, (phrase, answers) in enumerate(people.items()):
        row = [phrase, f"{np.median(answers):g}"]
        for model in models:
            medians = model.points["median"][:, index]
            shown = 10**medians if kind == "quantity" else medians
            row.append(" / ".join(f"{value:.0f}" for value in shown))
            row += [f"{model.of_phrases(name, 0)[index]:.{digits}f}" for name in ("exact distribution", "greedy text")]
        rows.append(row)
    return table(header, rows)


def parts_of(kind, people, answers):
    digits = 1 if kind == "probability" else 2
    models, base = [Model(name, kind, people, lines) for name, lines in answers.items()], baselines(kind, people)
    unit = "percentage points" if kind == "probability" else "powers of ten"
    return [
        f"## {KINDS[kind]}: all phrases\n\nIn {unit}, averaged over three prompts and {len(people)} phrases, with 95% intervals over phrases.\n",
        overview(kind, models, base, digits),
        f"## {KINDS[kind]}: the exact distribution against others\n\nBelow 0, the first one is better.\n",
        comparisons(models, base, digits),
        f"## {KINDS[kind]}: by prompt\n",
        by_prompt(models, digits),
        f"## {KINDS[kind]}: by phrase\n\nCRPS averaged over the prompts.\n",
        by_phrase(models, people, kind, digits),
    ]


def picture(people, lines):
    """Draws the probabilities of a model, averaged over the prompts, next to people's answers."""
    low, high = LIMITS["probability"]
    half = (high - low) / (BINS - 1) / 2
    edges = np.linspace(low - half, high + half, BINS + 1)
    rows = {}
    for phrase, answers in sorted(people.items(), key=lambda item: -np.median(item[1])):
        found = [line for line in lines if line["phrase"] == phrase]
        shares = np.zeros(BINS)
        for line in found:
            values, weights = np.array(line["distribution"]).T
            shares += np.histogram(values, edges, weights=weights / weights.sum())[0] / len(found)
        rows[phrase] = shares, answers, sorted({line["greedy"] for line in found if line["greedy"] is not None})
    legend = ["the model's exact distribution", "● 46 people", "× its greedy text, three prompts"]
    return strips("What probability, in percent, does a phrase mean?", rows, legend, low, high)


def is_complete(item, answers):
    """Returns whether all models have answered all prompts with this phrase."""
    counts = [sum(line["phrase"] == item["phrase"] for line in lines) for lines in answers.values()]
    return all(count == len(PROMPTS[item["kind"]]) for count in counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("answers", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args()
    items = [json.loads(line) for line in (arguments.answers / "people.jsonl").read_text().splitlines()]
    answers = {path.name.removesuffix(".jsonl.gz"): read_rows(path) for path in sorted(arguments.answers.glob("*.jsonl.gz"))}
    parts = []
    for kind in KINDS:
        people = {item["phrase"]: item["ratings"] for item in items if item["kind"] == kind and is_complete(item, answers)}
        parts += parts_of(kind, people, answers)
        if kind == "probability":
            for name, lines in answers.items():
                (arguments.answers / f"{name}.svg").write_text(picture(people, lines), encoding="utf-8")
    replace_below(MARK, arguments.page, "\n".join(parts))


if __name__ == "__main__":
    main()

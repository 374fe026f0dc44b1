"""Writes the page that compares a model's ratings with people's, from the samples that people.py and people_tuned.py keep.

    people_page.py SAMPLES --page FILE

The text above the mark in FILE stays, and the tables below it are replaced. Needs numpy and scipy.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from people_scores import (
    COVERAGE,
    RESAMPLES,
    SCORES,
    calibration_error,
    covered,
    crps,
    energy_distance,
    lead,
    mapped,
    mapped_rmse,
    pearson,
    resampled,
    rmse,
    spearman,
    spread,
)
from ratings import MIDDLE
from rows import read_rows
from tables import p_value, replace_below, table

MARK = "<!-- Below: written by lab/recipes/people_page.py. -->\n"
READINGS = {"mean": "mean", "median": "median", "mode": "mode", "one_token": "one token", "greedy": "greedy text"}
HEAD = "regression head"
# For each measure of a comparison, what is done with the ratings first. The linear map is not fitted again on
# each resample.
MEASURES = {
    "RMSE": (lambda ratings, truth: ratings, rmse),
    "RMSE after a linear map": (mapped, rmse),
    "Pearson correlation": (lambda ratings, truth: ratings, pearson),
    "Spearman correlation": (lambda ratings, truth: ratings, spearman),
}


class Run:
    """One model or prompt on the texts of one or more sets: arrays over the texts. A regression head has no distribution."""

    def __init__(self, name, prompt, samples):
        self.name, self.prompt, self.ids = name, prompt, [sample["id"] for sample in samples]
        self.people = np.array([histogram(sample["ratings"]) for sample in samples])
        self.truth = self.people @ SCORES
        self.model = None
        if "value" in samples[0]:
            self.readings = {"mean": np.array([sample["value"] for sample in samples])}
            return
        self.model = np.array([normalised(sample["distribution"]) for sample in samples])
        self.closed = np.array([sample["mass_closed"] for sample in samples])
        self.written = np.array([sample["greedy"] is not None for sample in samples])
        below = np.cumsum(self.model, axis=1)
        self.readings = {
            "mean": self.model @ SCORES,
            "median": SCORES[(below >= 0.5).argmax(axis=1)].astype(float),
            "mode": SCORES[self.model.argmax(axis=1)].astype(float),
            "one_token": given(samples, "one_token"),
            "greedy": given(samples, "greedy"),
        }


def samples_of(path):
    """Returns the name of the set, the name of the prompt or model, and the samples of a file."""
    samples = read_rows(path)
    name, _, prompt = path.name.removesuffix(".jsonl.gz").partition("-")
    return name, prompt, samples


def histogram(ratings):
    return np.array([ratings.count(score) for score in SCORES]) / len(ratings)


def normalised(distribution):
    return np.array(distribution) / sum(distribution)


def given(samples, field):
    """Returns a reading of the text, which is the middle of the scale if the text has no score."""
    return np.array([MIDDLE if sample[field] is None else sample[field] for sample in samples], dtype=float)


def correlations(runs, correlation):
    rows = []
    for run in runs:
        found = {name: correlation(values, run.truth) for name, values in run.readings.items()}
        again = resampled(run.readings, run.truth, correlation)
        constant = {name for name, values in run.readings.items() if np.ptp(values) == 0}
        best = max((name for name in found if name not in constant), key=found.get, default=None)
        cells = []
        for name, value in found.items():
            low, high = np.quantile(again[name], [0.025, 0.975])
            text = "always the same" if name in constant else f"{value:.3f} ({low:.3f} to {high:.3f})"
            cells.append(f"**{text}**" if name == best and len(found) > 1 else text)
        rows.append([f"{run.name}, {run.prompt}", *cells, *[""] * (len(READINGS) - len(cells))])
    return table(["", *READINGS.values()], rows)


def interval(first, second, digits=3):
    """Returns the interval of the difference between two resampled measures, and its p-value, as text."""
    low, high, p, is_bound = lead(first, second)
    return f"{low:+.{digits}f} to {high:+.{digits}f}", f"p {p_value(p, is_bound)}"


def leads(runs, prepared, measure):
    rows = []
    for run in runs:
        again = resampled({name: prepared(values, run.truth) for name, values in run.readings.items()}, run.truth, measure)
        rows.append([f"{run.name}, {run.prompt}", *(", ".join(interval(again["mean"], again[name])) for name in list(READINGS)[1:])])
    return table(["", *list(READINGS.values())[1:]], rows)


def errors(runs):
    rows = []
    for run in runs:
        cells = [f"{mapped_rmse(values, run.truth):.3f}" for values in run.readings.values()]
        constant = mapped_rmse(np.zeros_like(run.truth), run.truth)
        rows.append([f"{run.name}, {run.prompt}", *cells, f"{constant:.3f}", f"{run.closed.mean():.2f}", f"{run.written.mean():.2f}"])
    return table(["", *READINGS.values(), "constant", "closed mass", "text begins with a score"], rows)


def distribution_row(label, distribution, people):
    figures = [score(distribution, people).mean() for score in (crps, energy_distance, covered)]
    figures += [calibration_error(distribution, people), spread(distribution).mean()]
    return [label, *(f"{figure:.3f}" for figure in figures)]


def distributions(runs, always):
    """`always` has the distribution of the training ratings by the name of a set, or of several sets' texts."""
    rows = []
    for run in runs:
        constant = np.broadcast_to(always[run.name], run.people.shape)
        for label, distribution in [(run.prompt, run.model), ("always all training ratings", constant), ("the people", run.people)]:
            row = distribution_row(f"{run.name}, {label}", distribution, run.people)
            if row not in rows:
                rows.append(row)
    return table(["", "CRPS", "energy distance", f"coverage of {COVERAGE:.0%}", "calibration error", "standard deviation"], rows)


def prompted_parts(runs, always):
    return [
        "## Zero-shot and few-shot: Pearson correlation with the people's mean\n",
        correlations(runs, pearson),
        "## Lead of the mean over other readings\n\nThe 95% interval of the difference, and its p-value. A negative RMSE and a positive correlation mean "
        "that the mean is better.\n",
        *(f"{name}:\n\n{leads(runs, *MEASURES[name])}" for name in list(MEASURES)[1:]),
        "## Spearman correlation\n",
        correlations(runs, spearman),
        "## RMSE after a linear map\n\nThe map is fitted on four fifths of the texts and applied to the others.\n",
        errors(runs),
        "## The model's distribution and the people's\n",
        distributions(runs, always),
    ]


def training(records):
    rows = []
    for name, record in records.items():
        rows.append([name, str(record["seed"]), f"{record['steps']:,}", str(record["batch"]), f"{record['lr']:g}", f"{record['seconds'] / 60:.0f}"])
    return table(["", "seed", "steps", "batch", "learning rate", "minutes"], rows)


def tuned_errors(runs):
    """Returns the RMSE of the ratings as they are, and after a linear map."""
    rows = []
    for run in runs:
        cells = [f"{rmse(values, run.truth):.3f} / {mapped_rmse(values, run.truth):.3f}" for values in run.readings.values()]
        rows.append([run.prompt, *cells, *[""] * (len(READINGS) - len(cells))])
    truth = runs[0].truth
    rows.append(["the test texts' mean", f"{rmse(np.full_like(truth, truth.mean()), truth):.3f}", *[""] * (len(READINGS) - 1)])
    return table(["", *READINGS.values()], rows)


def difference(first, second, truth):
    """Returns the difference in every measure between two readings, each with its interval and p-value."""
    cells = []
    for prepared, measure in MEASURES.values():
        both = {"first": prepared(first, truth), "second": prepared(second, truth)}
        again = resampled(both, truth, measure)
        between, p = interval(again["first"], again["second"])
        cells.append(f"{measure(both['first'], truth) - measure(both['second'], truth):+.3f} ({between}), {p}")
    return cells


def comparisons(runs):
    """Compares every model's readings with each other, and with the plain cross entropy model of the same seed."""
    by_name, rows = {run.prompt: run for run in runs}, []

    def row(name, reading, other, other_reading):
        first, second = by_name[name], by_name[other]
        if first.ids != second.ids:
            raise ValueError(f"{name} and {other} rated different texts")
        labels = [f"{of}, {HEAD if of.startswith('head') else READINGS[by]}" for of, by in [(name, reading), (other, other_reading)]]
        rows.append([" against ".join(labels), *difference(first.readings[reading], second.readings[other_reading], first.truth)])

    for name, run in by_name.items():
        plain = f"ce-{name.rpartition('-')[2]}"
        if run.model is not None:
            for reading in ("median", "mode", "greedy"):
                row(name, "mean", name, reading)
        if name != plain and plain in by_name:
            pairs = [("greedy", "greedy"), ("greedy", "mean"), ("mean", "mean")] if run.model is not None else [("mean", "mean"), ("mean", "greedy")]
            for reading, other in pairs:
                row(name, reading, plain, other)
    return table(["", *MEASURES], rows)


def text_parts(found):
    """Returns the cross entropy of words and digits in texts without ratings, and its difference from the model of plain cross entropy."""
    rows, chosen = [], None
    for name, texts in found.items():
        figures = np.array(texts)
        if chosen is None:
            chosen = np.random.default_rng(0).integers(0, len(figures), (RESAMPLES, len(figures)))
        plain, cells = f"ce-{name.rpartition('-')[2]}", []
        for nats, tokens in ((0, 1), (2, 3)):
            cells.append(f"{figures[:, nats].sum() / figures[:, tokens].sum():.4f}")
            if plain == name or plain not in found:
                cells.append("")
                continue
            others = np.array(found[plain])
            again = [values[chosen][:, :, nats].sum(axis=1) / values[chosen][:, :, tokens].sum(axis=1) for values in (figures, others)]
            cells.append(", ".join(interval(*again, digits=4)))
        rows.append([name, *cells])
    header = ["", "words", "minus CE of the same seed", "digits", "minus CE of the same seed"]
    return [
        f"## Fine-tuned: cross entropy of other text\n\nThe first {len(chosen[0])} questions of GSM8K's test split with their worked answers, in nats per token. "
        "Differences are 95% intervals over resampled texts.\n",
        table(header, rows),
    ]


def by_set(runs):
    """Returns the Pearson correlation of the mean and of the greedy text, for each set."""
    rows, sets = {}, {}
    for run in runs:
        cells = [f"{pearson(run.readings[name], run.truth):.3f}" for name in ("mean", "greedy") if name in run.readings]
        rows.setdefault(run.prompt, []).append(" / ".join(cells))
        sets[run.name] = True
    return table(["", *sets], [[prompt, *cells] for prompt, cells in rows.items()])


def pooled(files):
    """Returns a run over all sets for each model."""
    samples = {}
    for _, model, found in files:
        samples.setdefault(model, []).extend(found)
    return [Run("all sets", model, found) for model, found in samples.items()]


def marginals(files, always):
    """Returns the distribution of the training ratings of each text's set, in the order of the pooled texts."""
    sizes = {name: len(found) for name, _, found in files}
    return np.concatenate([np.broadcast_to(always[name], (size, len(SCORES))) for name, size in sizes.items()])


def tuned_parts(files, records, always):
    runs, apart = pooled(files), [Run(*file) for file in files]
    constant = marginals(files, always)
    texts, sets = len(constant), {run.name for run in apart}
    return [
        f"## Fine-tuned: the models\n\nAll of them rated the same {texts:,} test texts of {len(sets)} sets, which the tables below pool.\n",
        training(records),
        "## Fine-tuned: Pearson correlation with the people's mean\n\nA regression head has one reading, which is in the column of the mean.\n",
        correlations(runs, pearson),
        "## Fine-tuned: Pearson correlation by set, mean / greedy text\n",
        by_set(apart),
        "## Fine-tuned: Spearman correlation\n",
        correlations(runs, spearman),
        "## Fine-tuned: RMSE as it is / after a linear map\n",
        tuned_errors(runs),
        "## Fine-tuned: paired comparisons\n\nThe first reading minus the second, with the 95% interval over resampled texts. A negative RMSE and a "
        "positive correlation mean that the first one is better.\n",
        comparisons(runs),
        "## Fine-tuned: the model's distribution and the people's\n",
        distributions([run for run in runs if run.model is not None], {"all sets": constant}),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args()
    counts = json.loads((arguments.samples / "training-ratings.json").read_text())
    always = {name: np.array(ratings) / sum(ratings) for name, ratings in counts.items()}
    files, tuned = [], []
    for path in sorted(arguments.samples.glob("*.jsonl.gz")):
        name, prompt, samples = samples_of(path)
        model = prompt.removeprefix("tuned-")
        (files if model == prompt else tuned).append((name, model, samples))
    parts = []
    if tuned:
        parts += tuned_parts(tuned, json.loads((arguments.samples / "tuned.json").read_text()), always)
        if (text := arguments.samples / "text.json").is_file():
            parts += text_parts(json.loads(text.read_text()))
    if files:
        runs = pooled(files) + [Run(*file) for file in files]
        parts += prompted_parts(runs, always | {"all sets": marginals(files, always)})
    replace_below(MARK, arguments.page, "\n".join(parts))


if __name__ == "__main__":
    main()

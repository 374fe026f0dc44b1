"""Compares `ntl.NumberRegressor` with simple models on the prices of diamonds, described in words.

    pip install THE_WHEEL numpy pandas scikit-learn plotnine
    ntl-server --model smol=DIR
    python prices.py OUT [--train 200] [--test 100] [--examples 8] [--url URL] [--model NAME]

The rows are a random sample of the set `diamonds` that the package plotnine contains (from ggplot2, MIT):
price, carat, cut, color and clarity. Prices are rounded to hundreds of dollars, since every further digit
multiplies the number of texts that the server examines. OUT keeps every distribution, so that an interrupted
run continues with the same arguments. It prints a table, and writes it to OUT/table.md. All errors are in
dollars.

A point prediction becomes a distribution by adding the errors that its model makes on held-out parts of the
training rows. So all rows of the table have a CRPS and an interval with a coverage of 90%.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
from plotnine.data import diamonds
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline

import ntl
from ntl.distribution import Distribution

TEMPLATE = "Diamond of {carat} carat, {cut} cut, color {color}, clarity {clarity}.\nPrice in hundreds of dollars:"
UNIT = 100
COVERAGE = 0.9
REFERENCE = "TF-IDF ridge"
BLOCK = 10
FOLDS = 10


class KeptClient(ntl.Client):
    """A client that keeps distributions in a file, and requests only those that it does not contain."""

    def keep_in(self, path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.kept = {row["key"]: row["number"] for row in map(json.loads, lines)}
        return self

    def numbers(self, prompts, *, progress=False, **options):
        keys = [self.key(prompt, options) for prompt in prompts]
        missing = [index for index, key in enumerate(keys) if key not in self.kept]
        for start in range(0, len(missing), BLOCK):
            block = missing[start : start + BLOCK]
            found = super().numbers([prompts[index] for index in block], **options)
            with self.path.open("a") as file:
                for index, one in zip(block, found):
                    self.kept[keys[index]] = one.raw
                    file.write(json.dumps({"key": keys[index], "number": one.raw}) + "\n")
            print(f"{start + len(block)} of {len(missing)} distributions", flush=True)
        return [Distribution.from_response(self.kept[key]) for key in keys]

    def key(self, prompt, options):
        return hashlib.sha256(json.dumps([self.model, prompt, options], sort_keys=True).encode()).hexdigest()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=200)
    parser.add_argument("--test", type=int, default=100)
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--tolerance", type=float, default=None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default=None)
    return parser.parse_args()


def baselines(examples):
    """Each baseline, and whether it reads texts or the columns."""

    def words():
        return TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"[^\s,]+", sublinear_tf=True)

    neighbours = KNeighborsRegressor(examples, metric="cosine")
    return {
        "median of the training rows": (DummyRegressor(strategy="median"), True),
        f"mean of {examples} rows nearest by TF-IDF": (make_pipeline(words(), neighbours), True),
        REFERENCE: (make_pipeline(words(), RidgeCV(np.logspace(-3, 3, 13))), True),
        "gradient boosting on TF-IDF": (make_pipeline(words(), GradientBoostingRegressor(random_state=0)), True),
        "gradient boosting on the columns": (GradientBoostingRegressor(random_state=0), False),
    }


def codes(rows):
    """The columns as numbers; the categories of this set are ordered."""
    return np.column_stack([rows[name] if name == "carat" else rows[name].cat.codes for name in rows])


def crps_of_sample(samples, y):
    """E|X - y| - E|X - X'| / 2 of equally probable values."""
    return np.abs(samples - y).mean() - np.abs(samples[:, None] - samples[None, :]).mean() / 2


def figures(name, predicted, crps, intervals, truth):
    covered = (intervals[:, 0] <= truth) & (truth <= intervals[:, 1])
    return {
        "model": name,
        "RMSE": np.sqrt(np.mean((predicted - truth) ** 2)),
        "MAE": np.mean(np.abs(predicted - truth)),
        "CRPS": np.mean(crps),
        # The scores of the rows, which `main` compares.
        "scores": np.array(crps),
        "coverage": covered.mean(),
        "width": np.mean(intervals[:, 1] - intervals[:, 0]),
    }


def difference(values):
    """A mean difference with its 95% interval, by resampling the test rows."""
    draws = np.random.default_rng(0).integers(0, len(values), (4000, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return f"{values.mean():.0f} ({low:.0f} to {high:.0f})"


def of_baseline(name, model, X, y, X_test, y_test):
    errors = y - cross_val_predict(model, X, y, cv=FOLDS)
    predicted = model.fit(X, y).predict(X_test)
    # As in split conformal prediction, the interval leaves out (1 - COVERAGE) / 2 of n + 1 errors on both sides.
    tail = int(np.floor((len(errors) + 1) * (1 - COVERAGE) / 2))
    ordered = np.sort(errors)
    intervals = predicted[:, None] + np.array([ordered[tail - 1], ordered[-tail]])
    crps = [crps_of_sample(value + errors, truth) for value, truth in zip(predicted, y_test)]
    return figures(name, predicted, crps, intervals, y_test)


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = diamonds.sample(options.train + options.test, random_state=options.seed).reset_index(drop=True)
    prices = rows["price"].div(UNIT).round().to_numpy(dtype=float)
    rows = rows[["carat", "cut", "color", "clarity"]]
    texts = [TEMPLATE.format(**row) for row in rows.to_dict("records")]
    columns = codes(rows)
    split = options.train

    found = []
    for name, (model, reads_texts) in baselines(options.examples).items():
        X = texts if reads_texts else columns
        found.append(of_baseline(name, model, X[:split], prices[:split], X[split:], prices[split:]))

    client = KeptClient(options.url, options.model, concurrency=BLOCK).keep_in(options.out / "distributions.jsonl")
    with client:
        fields = None if options.tolerance is None else {"tolerance": options.tolerance}
        model = ntl.NumberRegressor(
            client, template="{text}", examples=options.examples, coverage=COVERAGE, options=fields
        )
        began = time.monotonic()
        model.fit(texts[:split], prices[:split])
        distributions = model.predict_distribution(texts[split:])
        print(f"{time.monotonic() - began:.0f} s; mass on numbers {np.mean([one.mass.closed for one in distributions]):.3f}")
        own = np.array([one.interval(COVERAGE) for one in distributions])
        crps = [one.crps(truth) for one, truth in zip(distributions, prices[split:])]
        name = f"NumberRegressor, {options.model or 'the served model'}, {options.examples} examples"
        for label, predicted, intervals in (
            ("mean, calibrated", model.predict(texts[split:]), model.predict_interval(texts[split:])),
            ("median, own interval", np.array([one.median for one in distributions]), own),
        ):
            found.append(figures(f"{name}: {label}", predicted, crps, intervals, prices[split:]))

    table = pd.DataFrame(found)
    scores = table.pop("scores")
    reference = scores[list(table["model"]).index(REFERENCE)]
    table.insert(4, "CRPS minus the ridge's", [difference(UNIT * (one - reference)) for one in scores])
    for column in ("RMSE", "MAE", "CRPS", "width"):
        table[column] = (UNIT * table[column]).round().astype(int)
    lines = ["| " + " | ".join(table.columns) + " |", "|---" + "|---:" * (len(table.columns) - 1) + "|"]
    lines += ["| " + " | ".join(str(value) for value in row) + " |" for row in table.itertuples(index=False)]
    (options.out / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

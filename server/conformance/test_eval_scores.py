"""Compares the scores of ntl-eval in regress mode and as a judge with properscoring, scipy, scikit-learn and MAPIE, from the
distributions that a server returned.

NTL_EVAL is the program (default: `ntl-eval` next to NTL_SERVER), NTL_SCORED_ITEMS the number of items of each run (100)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import properscoring
import pytest
from mapie.metrics.regression import regression_coverage_score, regression_mean_width_score, regression_mwi_score
from mapie.regression import ConformalizedQuantileRegressor
from scipy import stats
from sklearn import metrics
from sklearn.base import BaseEstimator, RegressorMixin

from conftest import FIXTURES
from served import Server

EVAL = Path(os.environ.get("NTL_EVAL", Path(os.environ["NTL_SERVER"]).with_name("ntl-eval")))
ITEMS = int(os.environ.get("NTL_SCORED_ITEMS", "100"))
GENERATED = Path(__file__).parents[2] / "lab/recipes/generated.py"
ALPHA = 0.1
TOLERANCE = 1e-9
NUMBERS = ["arithmetic", "--split", "interpolate"]
# The demo rates reviews: as a judge, it gets the question unchanged.
FIELDS = ["--input-field", "question", "--answer-field", "question", "--human-field", "answer", "--template", "{answer}"]
GRADES = ["judge", "--scale", "1,5", *FIELDS]
RUNS = {
    "demo, numbers": ("demo", NUMBERS),
    "demo, grades": ("demo", GRADES),
    "t5-ntl-was, numbers": ("t5-ntl-was", NUMBERS),
}
pytestmark = pytest.mark.skipif(not EVAL.is_file(), reason=f"there is no {EVAL}")


def evaluate(*arguments):
    ended = subprocess.run([EVAL, *map(str, arguments)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def reviews(folder):
    """A file of reviews with ratings, none of which the demo was trained on."""
    command = [sys.executable, GENERATED, "--split", "test", "--count", str(ITEMS), "--tasks", "ratings"]
    file = folder / "reviews.jsonl"
    file.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    return file


class Run:
    """A run in regress mode: its report, its samples, and their distributions."""

    def __init__(self, server, task, out, seed=0):
        how = ["--mode", "regress", "--interval", 1 - ALPHA, "--limit", ITEMS, "--seed", seed, "--quiet"]
        evaluate(*task, *how, "--endpoint", server.url, "--out", out)
        self.folder = out
        self.report = json.loads((out / "report.json").read_text())
        rows = map(json.loads, (out / "samples.jsonl").read_text().splitlines())
        answers = map(json.loads, (out / "journal.jsonl").read_text().splitlines()[1:])
        numbers = {answer["id"]: answer["value"]["number"] for answer in answers if answer["id"].startswith("answer")}
        self.items = [(row, numbers[f"answer {row['doc_id']}"]) for row in rows]

    def value(self, name):
        return self.report["metrics"][name]["value"]

    def estimate(self, metric, estimate):
        return self.report["estimates"][metric]["values"][estimate]["value"]

    def predictions(self, estimate):
        """Truths and estimates of the items that have a number."""
        pairs = [(row["truth"], row["prediction"][estimate]) for row, _ in self.items if row.get("prediction")]
        return numpy.array(pairs).T

    def intervals(self):
        """Truths and intervals of the items that have one."""
        rows = [row for row, _ in self.items if row.get("interval")]
        ends = numpy.array([[[row["interval"]["low"]], [row["interval"]["high"]]] for row in rows])
        return numpy.array([row["truth"] for row in rows]), ends


class Column(RegressorMixin, BaseEstimator):
    """A fitted regressor that predicts a column of its input: the quantile that a server gave."""

    def __init__(self, place=0):
        self.place = place
        self.fitted_ = True

    def fit(self, X, y):
        return self

    def predict(self, X):
        return numpy.asarray(X)[:, self.place]


def conformal(truths, ends):
    """MAPIE's conformalized quantile regression on these intervals."""
    columns = numpy.column_stack([ends[:, 0, 0], ends[:, 1, 0], ends[:, :, 0].mean(axis=1)])
    regressor = ConformalizedQuantileRegressor([Column(0), Column(1), Column(2)], confidence_level=1 - ALPHA, prefit=True)
    return regressor.conformalize(columns, truths)


def shares(number):
    """Values and probabilities of a distribution, and the probability of all other numbers, as parts of 1."""
    values, probabilities = numpy.array(number["support"]).T
    mass = number["mass_closed"] + number["mass_open"]
    return values, probabilities / probabilities.sum(), max(0.0, mass - probabilities.sum()) / mass


def crps_by_properscoring(number, truth):
    values, weights, _ = shares(number)
    return properscoring.crps_ensemble(truth, values, weights=weights)


def crps_by_scipy(number, truth):
    values, weights, _ = shares(number)
    return stats.energy_distance(values, [truth], weights) ** 2 / 2


def log_score(number, truth):
    """scikit-learn's, over the returned values and one class for all others."""
    values, weights, unknown = shares(number)
    among = numpy.flatnonzero(values == truth)
    place = among[0] if len(among) else len(values)
    known = numpy.append(weights * (1 - unknown), unknown)
    return metrics.log_loss([place], [known], labels=range(len(known)))


def apart(ours, theirs):
    """The distance of two figures, relative to the second one if that is above 1."""
    return abs(ours - theirs) / max(1.0, abs(theirs))


def of_items(run):
    """For each score of items, its largest difference, also that of its mean, and of how many items."""
    others = {
        "crps, properscoring": ("crps", crps_by_properscoring),
        "crps, scipy": ("crps", crps_by_scipy),
        "log_score, scikit-learn": ("log_score", log_score),
    }
    found = {}
    for name, (ours, other) in others.items():
        pairs = [(row[ours], other(number, row["truth"])) for row, number in run.items if row.get(ours) is not None]
        mean = apart(run.value(ours), numpy.mean([theirs for _, theirs in pairs]))
        found[name] = (max(mean, *(apart(one, theirs) for one, theirs in pairs)), len(pairs))
    return found


def of_runs(run):
    """The difference of each metric of the run, and of how many items."""
    truths, means = run.predictions("mean")
    _, medians = run.predictions("median")
    relative = truths != 0
    quantiles = [(row["truth"], one["value"], one["q"]) for row, _ in run.items for one in row.get("quantiles", [])]
    pinball = [metrics.mean_pinball_loss([truth], [value], alpha=q) for truth, value, q in quantiles]
    known, ends = run.intervals()
    covered = round(regression_coverage_score(known, ends)[0] * len(known))
    wilson = stats.binomtest(covered, len(known)).proportion_ci(0.95, method="wilson")
    coverage = run.report["metrics"]["interval_coverage"]
    theirs = {
        "mae": metrics.mean_absolute_error(truths, medians),
        "median_ae": metrics.median_absolute_error(truths, medians),
        "mape": metrics.mean_absolute_percentage_error(truths[relative], medians[relative]),
        "mse": metrics.mean_squared_error(truths, means),
        "rmse": metrics.root_mean_squared_error(truths, means),
        "r2": metrics.r2_score(truths, means),
        "pearson": stats.pearsonr(truths, means).statistic,
        "spearman": stats.spearmanr(truths, means).statistic,
        "kendall": stats.kendalltau(truths, means).statistic,
        "pinball": numpy.mean(pinball),
        "winkler": regression_mwi_score(known, ends, 1 - ALPHA),
        "interval_coverage": covered / len(known),
        "interval_width": regression_mean_width_score(ends)[0],
    }
    found = {name: (apart(run.value(name), value), len(truths)) for name, value in theirs.items()}
    ends_apart = [apart(coverage["low"], wilson.low), apart(coverage["high"], wilson.high)]
    return found | {"interval_coverage, its interval": (max(ends_apart), len(known))}


def of_agreement(run):
    """Kappa of a judge, for both of its scores: scikit-learn's for the mode, which is one of its classes, and for the mean Lin's
    concordance correlation (1989), which it is between classes."""
    truths, means = run.predictions("mean")
    _, modes = run.predictions("mode")
    (_, covariance), (_, _) = numpy.cov(truths, means, bias=True)
    concordance = 2 * covariance / (truths.var() + means.var() + (truths.mean() - means.mean()) ** 2)
    theirs = {"mode": metrics.cohen_kappa_score(truths, modes, weights="quadratic", labels=range(1, 6)), "mean": concordance}
    return {
        "kappa of modes, scikit-learn": (apart(run.estimate("kappa", "mode"), theirs["mode"]), len(truths)),
        "kappa of means": (apart(run.value("kappa"), theirs["mean"]), len(truths)),
        "kendall of modes": (apart(run.estimate("kendall", "mode"), stats.kendalltau(truths, modes).statistic), len(truths)),
    }


def of_calibration(run, file):
    """The offset of a calibration on all items of the run."""
    truths, ends = run.intervals()
    evaluate("calibrate", run.folder, "--alpha", ALPHA, "--items", len(truths), "--out", file)
    ours = json.loads(file.read_text())["offset"]
    # The widest interval does not cross its ends when it is moved.
    columns = numpy.array([[0.0, 1e6, 5e5]])
    _, moved = conformal(truths, ends).predict_interval(columns, symmetric_correction=True)
    return {"offset of calibrate, MAPIE": (apart(ours, -moved[0, 0, 0]), len(truths))}


@pytest.mark.parametrize("what", RUNS)
def test_scores_are_those_of_other_packages(what, tmp_path, report):
    model, task = RUNS[what]
    fixture = FIXTURES / model
    if model != "demo" and not fixture.is_dir():
        pytest.skip(f"there is no {fixture}")
    data = ["--data", reviews(tmp_path)] if task is GRADES else []
    with Server(*([] if model == "demo" else ["--model", f"{model}={fixture}"])) as server:
        run = Run(server, [*task, *data], tmp_path / "run")
    found = of_items(run) | of_runs(run) | of_calibration(run, tmp_path / "calibration.json")
    if task is GRADES:
        found |= of_agreement(run)
    shown = {name: [float(f"{difference:.1e}"), count] for name, (difference, count) in found.items()}
    report(run=what, largest_difference_and_items=shown)
    assert {name: difference for name, (difference, _) in found.items() if not difference <= TOLERANCE} == {}


def test_calibrated_intervals_of_a_server_are_those_of_mapie(tmp_path, report):
    with Server() as server:
        run = Run(server, NUMBERS, tmp_path / "run")
        plain = Run(server, NUMBERS, tmp_path / "plain", seed=1)
    file = tmp_path / "calibration.json"
    of_calibration(run, file)
    with Server("--calibration", file) as server:
        calibrated = Run(server, NUMBERS, tmp_path / "calibrated", seed=1)
    truths, ends = plain.intervals()
    columns = numpy.column_stack([ends[:, 0, 0], ends[:, 1, 0], ends[:, :, 0].mean(axis=1)])
    _, wanted = conformal(*run.intervals()).predict_interval(columns, symmetric_correction=True)
    _, got = calibrated.intervals()
    assert {row["interval"]["method"] for row, _ in calibrated.items} == {"conformal"}
    worst = float(numpy.abs(got - wanted).max())
    coverage = {"before": regression_coverage_score(truths, ends)[0], "after": regression_coverage_score(truths, got)[0]}
    report(intervals=len(got), worst_difference=worst, coverage=coverage)
    assert worst <= TOLERANCE and coverage["after"] > coverage["before"]

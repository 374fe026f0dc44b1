"""How well a model's ratings agree with people's: correlations, errors, proper scores and calibration."""

import numpy as np
from scipy.stats import rankdata

from ratings import HIGH, LOW

SCORES = np.arange(LOW, HIGH + 1)
RESAMPLES = 2_000
FOLDS = 5
COVERAGE = 0.9
BINS = 10
# Smaller differences of ratings are rounding errors.
DECIMALS = 9


def pearson(predicted, truth):
    """Returns the correlations along the last axis; 0 for constants."""
    x, y = (values - values.mean(axis=-1, keepdims=True) for values in (predicted, truth))
    scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    return np.divide((x * y).sum(axis=-1), scale, out=np.zeros_like(scale), where=scale > 1e-12)


def spearman(predicted, truth):
    """Returns the rank correlations along the last axis. Means that differ by rounding errors only are ties."""
    ranks = [rankdata(np.round(values, DECIMALS), axis=-1) for values in (predicted, truth)]
    return pearson(*ranks)


def mapped(predicted, truth):
    """Returns each prediction after a linear map that is fitted on the other folds."""
    fold = np.arange(len(truth)) % FOLDS
    result = np.empty_like(truth)
    for number in range(FOLDS):
        rest, here = fold != number, fold == number
        design = np.stack([predicted, np.ones_like(predicted)], axis=1)
        result[here] = design[here] @ np.linalg.lstsq(design[rest], truth[rest], rcond=None)[0]
    return result


def rmse(predicted, truth):
    return np.sqrt(((predicted - truth) ** 2).mean(axis=-1))


def mapped_rmse(predicted, truth):
    return rmse(mapped(predicted, truth), truth)


def resampled(readings, truth, measure):
    """Returns the measure of every reading on the same resamples of the texts."""
    chosen = np.random.default_rng(0).integers(0, len(truth), (RESAMPLES, len(truth)))
    return {name: measure(values[chosen], truth[chosen]) for name, values in readings.items()}


def lead(first, second):
    """Returns the interval of the difference between two resampled measures, its two-sided p-value, and whether that is only an upper bound."""
    low, high = np.quantile(first - second, [0.025, 0.975])
    beyond = min((first <= second).mean(), (first >= second).mean())
    return low, high, min(1.0, 2 * max(beyond, 1 / len(first))), beyond == 0


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


def calibration_error(distribution, people):
    """Returns the expected calibration error: the mean over the scores of |probability - share of the ratings|, averaged within bins.

    Each bin of a score contains the texts to which the model gives a similar probability of this score.
    """
    places = np.minimum((distribution * BINS).astype(int), BINS - 1)
    errors = []
    for score in range(distribution.shape[1]):
        gap = (distribution - people)[:, score]
        errors.append(np.abs(np.bincount(places[:, score], gap, BINS)).sum() / len(gap))
    return float(np.mean(errors))


def spread(distribution):
    """Returns the standard deviation of each distribution."""
    mean = distribution @ SCORES
    return np.sqrt(np.maximum(distribution @ SCORES**2 - mean**2, 0))

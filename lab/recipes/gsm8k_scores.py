"""Selective answers: probabilities of sampled distributions, their calibration, and accuracy at a coverage. Needs numpy."""

import numpy as np

RESAMPLES = 2_000
BINS = 10
# Smaller differences of probabilities are rounding errors.
DECIMALS = 9


def averaged(distributions):
    """Returns the mean of distributions, each a map from a value to its probability.

    None stands for a text that ended without a number's marker. Like the server, the mean leaves it out. It is empty if all are None.
    """
    found = [distribution for distribution in distributions if distribution is not None]
    total = {}
    for distribution in found:
        for value, probability in distribution.items():
            total[value] = total.get(value, 0.0) + probability / len(found)
    return total


def mode_of(distribution):
    """Returns the most probable value and its probability; the smallest of several, and (None, 0) if there is none."""
    if not distribution:
        return None, 0.0
    value = min(distribution, key=lambda value: (-round(distribution[value], DECIMALS), value))
    return value, distribution[value]


def brier(confidence, correct):
    return ((confidence - correct) ** 2).mean(axis=-1)


def calibration_error(confidence, correct):
    """Returns the expected calibration error along the last axis: the mean of |confidence - accuracy| over bins of equal width."""
    places = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [np.abs(np.where(places == place, confidence - correct, 0).sum(axis=-1)) for place in range(BINS)]
    return sum(gaps) / confidence.shape[-1]


def kept_accuracy(confidence, correct, coverage):
    """Returns the accuracy along the last axis of the share `coverage` of the answers with the highest confidence.

    Answers of equal confidence at the border count in proportion, as if they were ordered at random.
    """
    kept = max(1, round(coverage * confidence.shape[-1]))
    rounded = np.round(confidence, DECIMALS)
    border = np.sort(rounded, axis=-1)[..., -kept, None]
    above, tied = rounded > border, rounded == border
    certain, uncertain = ((correct * which).sum(axis=-1) for which in (above, tied))
    return (certain + (kept - above.sum(axis=-1)) * uncertain / tied.sum(axis=-1)) / kept


def bootstrap(measure, *columns):
    """Returns the 95% interval of a measure over resampled questions.

    The questions are the last axis of every column. The measure reduces it; the results of other axes, such as groups of samples, are averaged.
    """
    count = columns[0].shape[-1]
    chosen = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    found = measure(*(column[..., chosen] for column in columns))
    low, high = np.quantile(found.reshape(-1, RESAMPLES).mean(axis=0), [0.025, 0.975])
    return float(low), float(high)


def mean(values):
    return values.mean(axis=-1)

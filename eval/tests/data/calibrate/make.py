#!/usr/bin/env python3
"""Makes golden.json: conformalized quantile regression (Romano, Patterson and Candes, 2019) on the first n items, and coverage
and width on the others before and after, in numpy; Wilson's intervals of the coverage by scipy.

    E_i = max(lower_i - y_i, y_i - upper_i)
    Q   = the ceil((n + 1)(1 - alpha))-th smallest of E
    C   = [lower - Q, upper + Q], or its middle if the ends cross, clipped to `range`; on a scale, the values inside it

It runs from any directory, needs numpy and scipy, and writes to its own directory.
"""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy
from scipy.stats import binomtest

random = numpy.random.default_rng(11)


def figures(lower, upper, truth):
    covered = int(numpy.sum((truth >= lower) & (truth <= upper)))
    wilson = binomtest(covered, len(truth)).proportion_ci(0.95, method="wilson")
    return {
        "coverage": covered / len(truth),
        "low": wilson.low,
        "high": wilson.high,
        "width": float(numpy.mean(upper - lower)),
    }


def case(alpha, n, lower, upper, truth, number, admitted):
    scores = numpy.maximum(lower - truth, truth - upper)[:n]
    rank = math.ceil((n + 1) * (1 - Fraction(alpha)))
    offset = float(numpy.quantile(scores, rank / n, method="inverted_cdf"))
    moved = [admitted(low - offset, high + offset) for low, high in zip(lower[n:], upper[n:])]
    after = numpy.array(moved)
    return {
        "alpha": float(alpha),
        "n": n,
        "number": number,
        "lower": lower.tolist(),
        "upper": upper.tolist(),
        "truth": truth.tolist(),
        "offset": offset,
        "before": figures(lower[n:], upper[n:], truth[n:]),
        "after": figures(after[:, 0], after[:, 1], truth[n:]),
    }


def whole(low, high):
    """Replaces ends that cross with their middle."""
    return (low, high) if low <= high else ((low + high) / 2, (low + high) / 2)


def within(low, high):
    return tuple(numpy.clip(whole(low, high), 0.0, 20.0))


def rating(values):
    def admitted(low, high):
        inside = [value for value in values if low <= value <= high]
        return inside[0], inside[-1]

    return admitted


def numbers(count, width):
    truth = random.normal(10, 3, count)
    middle = truth + random.normal(0, 2, count)
    half = random.exponential(width, count) + width
    return middle - half, middle + half, truth


def ratings(count, values):
    """Intervals of one or a few values, which often miss the truth."""
    at = random.integers(1, len(values) - 1, count)
    half = random.integers(0, 2, count)
    lower, upper = values[at - half], values[at + half]
    truth = values[numpy.clip(at + random.integers(-2, 3, count), 0, len(values) - 1)]
    return lower, upper, truth


five = numpy.arange(1.0, 6.0)
halves = numpy.arange(1.0, 10.5, 0.5)
cases = [
    case("0.1", 150, *numbers(400, 1.0), {}, whole),
    case("0.5", 99, *numbers(300, 2.0), {"range": [0.0, 20.0]}, within),
    case("0.1", 60, *ratings(200, five), {"scale": [1.0, 5.0]}, rating(five)),
    case("0.1", 80, *ratings(250, halves), {"scale": {"low": 1.0, "high": 10.0, "step": 0.5}}, rating(halves)),
]
path = Path(__file__).with_name("golden.json")
path.write_text(json.dumps(cases) + "\n")

#!/usr/bin/env python3
"""Makes golden.json: conformalized quantile regression in numpy, as Romano, Patterson and Candes (2019) write it.

    E_i = max(lower_i - y_i, y_i - upper_i)
    Q   = the ceil((n + 1)(1 - alpha))-th smallest of E, by numpy's quantile of the level ceil((n + 1)(1 - alpha)) / n
    C   = [lower - Q, upper + Q]

Run it from anywhere; it needs numpy and writes beside itself.
"""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy

random = numpy.random.default_rng(7)
cases = []
for n, alpha in [(19, "0.1"), (20, "0.1"), (99, "0.05"), (100, "0.2"), (200, "0.1"), (9, "0.1")]:
    truth = random.normal(10, 3, n)
    middle = truth + random.normal(0, 2, n)
    half = random.exponential(1.5, n)
    lower, upper = middle - half, middle + half
    scores = numpy.maximum(lower - truth, truth - upper)
    rank = math.ceil((n + 1) * (1 - Fraction(alpha)))
    offset = float(numpy.quantile(scores, rank / n, method="inverted_cdf"))
    assert offset == sorted(scores)[rank - 1]
    cases.append(
        {
            "alpha": float(alpha),
            "truth": truth.tolist(),
            "lower": lower.tolist(),
            "upper": upper.tolist(),
            "offset": offset,
            "covered": int(numpy.sum((truth >= lower - offset) & (truth <= upper + offset))),
        }
    )
path = Path(__file__).with_name("golden.json")
path.write_text(json.dumps(cases) + "\n")

#!/usr/bin/env python3
"""Makes golden.json: the losses of a number over a grid, in numpy and scipy.

    RAFT   (y - sum p v)^2                                    Lukasik et al., 2025
    DIST2  KL(t || q), t ~ exp(-|v - y| / tau), q ~ p         Chung et al., 2025, arXiv 2503.02379

Run it from anywhere; it writes beside itself.
"""

import json
from pathlib import Path

import numpy
from scipy.special import log_softmax, softmax
from scipy.stats import entropy

random = numpy.random.default_rng(11)
cases = []
for values, truth, tau in [
    (numpy.arange(1, 6), 4.0, 1.0),
    (numpy.arange(1, 11), 2.5, 0.5),
    (numpy.arange(0, 101), 37.0, 10.0),
    (numpy.arange(1, 5.5, 0.5), 5.0, 0.1),
]:
    for outside in (0.0, 2.0):
        # `outside`: how much probability is on other texts, as a logit beside those of the grid.
        logits = random.normal(0, 2, len(values) + 1)
        logits[-1] = outside
        logprobs = log_softmax(logits)[:-1]
        probabilities = numpy.exp(logprobs)
        target = softmax(-numpy.abs(values - truth) / tau)
        cases.append(
            {
                "values": values.astype(float).tolist(),
                "logprobs": logprobs.tolist(),
                "truth": truth,
                "tau": tau,
                "raft": float((truth - numpy.dot(probabilities, values)) ** 2),
                "dist2": float(entropy(target, probabilities / probabilities.sum())),
            }
        )
Path(__file__).with_name("golden.json").write_text(json.dumps(cases) + "\n")

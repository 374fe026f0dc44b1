"""The optimal distribution for cross entropy plus a weighted NTL-WAS, and its inverse: see docs/losses.md.

    optimum.py RJOKES_TEST PEOPLE

RJOKES_TEST is the file test.tsv.gz of rJokes, PEOPLE the kept answers in lab/results/people. Prints the figures of docs/losses.md. Needs numpy
and scipy.

`values` are the numbers of the tokens, the largest last. `weight` is the weight of NTL-WAS relative to the cross entropy of the token itself.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from people_page import pooled, samples_of
from people_scores import RESAMPLES, SCORES, covered, crps

JOKES = 2_000


def distances(values):
    return np.abs(values[:, None] - values[None, :])


def optimum(probabilities, weight, values):
    """Returns the q with the lowest expected loss E[-log q(Y) + weight sum_k q(k) |k - Y|], which is p(k) / (mu + weight E|k - Y|)."""
    possible = probabilities > 0
    far = weight * distances(values) @ probabilities
    if weight == 0 or possible.sum() == 1:
        return probabilities.copy()

    def excess(mu):
        return (probabilities[possible] / (mu + far[possible])).sum() - 1

    # The sum falls from infinity to at most 1, because mu = 1 makes every term smaller than its probability.
    least = -far[possible].min()
    mu = brentq(excess, least + 1e-13 * (1 + abs(least)), 1.0, xtol=1e-15)
    result = np.zeros_like(probabilities)
    result[possible] = probabilities[possible] / (mu + far[possible])
    return result / result.sum()


def inverse(optimal, weight, values):
    """Returns the p whose optimum is `optimal`, or None if no distribution has it.

    p(k) = q(k) (mu + weight sum_j p(j) |k - j|) is linear in p, and the sum of p determines mu.
    """
    system = np.eye(len(optimal)) - weight * optimal[:, None] * distances(values)
    try:
        solution = np.linalg.solve(system, optimal)
    except np.linalg.LinAlgError:
        return None
    result = solution / solution.sum()
    return result if np.isfinite(result).all() and (result >= 0).all() else None


def histogram(numbers, values):
    return np.array([numbers.count(value) for value in values]) / len(numbers)


def expected_crps(predicted, truth):
    """Returns the mean CRPS of a distribution of consecutive integers over their true distribution."""
    below, true_below = np.cumsum(predicted), np.cumsum(truth)
    return (below**2 - 2 * below * true_below + true_below).sum()


def expected_coverage(predicted, truth):
    """Returns the share of the truth between the quantiles 0.05 and 0.95 of a distribution."""
    below = np.cumsum(predicted)
    low, high = ((below >= level - 1e-12).argmax() for level in (0.05, 0.95))
    return truth[low : high + 1].sum()


def jokes(file):
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        votes = [round(float(line.split("\t")[0])) for line, _ in zip(lines, range(JOKES))]
    values = np.arange(max(votes) + 1.0)
    truth = histogram(votes, values)
    print(f"votes of {JOKES:,} jokes, known exactly:")
    for weight in (0.0, 0.3, 0.9, 2.0, 4.0):
        q = optimum(truth, weight, values)
        figures = f"CRPS {expected_crps(q, truth):.3f}, coverage {expected_coverage(q, truth):.3f}, mode {values[q.argmax()]:.0f}"
        print(f"  weight {weight}: {figures}, mean {q @ values:.3f}, q {q.round(3)}")


def people(folder):
    files = []
    for path in sorted(folder.glob("*-tuned-*.jsonl.gz")):
        name, prompt, samples = samples_of(path)
        files.append((name, prompt.removeprefix("tuned-"), samples))
    runs = pooled(files)
    rated, values = runs[0].people, SCORES.astype(float)
    print("people's ratings, known exactly:")
    for weight in (0.3, 0.9, 4.0):
        asked = np.array([optimum(people, weight, values) for people in rated])
        print(f"  weight {weight}: CRPS higher by {(crps(asked, rated) - crps(rated, rated)).mean():.4f}, coverage {covered(asked, rated).mean():.3f}")
    chosen = np.random.default_rng(0).integers(0, len(rated), (RESAMPLES, len(rated)))
    for run in runs:
        if not run.prompt.startswith("ntl-was"):
            continue
        for weight in (0.1, 0.3, 0.9):
            found = [inverse(q, weight, values) for q in run.model]
            inverted = np.array([q if p is None else p for p, q in zip(found, run.model)])
            change = crps(inverted, rated) - crps(run.model, rated)
            low, high = np.quantile(change[chosen].mean(axis=1), [0.025, 0.975])
            kept = sum(p is None for p in found)
            print(
                f"  {run.prompt}, inverted with {weight}: CRPS {change.mean():+.4f} ({low:+.4f} to {high:+.4f}), coverage "
                f"{covered(run.model, rated).mean():.3f} to {covered(inverted, rated).mean():.3f}, {kept} without an inverse"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jokes", type=Path)
    parser.add_argument("people", type=Path)
    arguments = parser.parse_args()
    jokes(arguments.jokes)
    people(arguments.people)


if __name__ == "__main__":
    main()

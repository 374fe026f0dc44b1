"""The optimum of cross entropy plus NTL-WAS, and its inverse."""

import numpy as np
import pytest

from optimum import distances, expected_crps, inverse, optimum


def expected_loss(q, p, weight, values):
    return -(p[p > 0] * np.log(q[p > 0])).sum() + weight * q @ distances(values) @ p


def drawn(seed, size=10):
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.full(size, 0.5))
    return generator, p, np.sort(generator.choice(50, size, replace=False)).astype(float)


@pytest.mark.parametrize("weight", [0.3, 0.9, 4.0])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_distribution_has_a_lower_expected_loss(weight, seed):
    generator, p, values = drawn(seed)
    q = optimum(p, weight, values)
    least = expected_loss(q, p, weight, values)
    assert q.sum() == pytest.approx(1)
    assert least < expected_loss(p, p, weight, values)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(200):
            other = q * np.exp(size * generator.normal(size=len(q)))
            assert expected_loss(other / other.sum(), p, weight, values) >= least - 1e-12


@pytest.mark.parametrize("weight", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_inverse_of_an_optimum_is_the_distribution(weight, seed):
    _, p, values = drawn(seed)
    assert inverse(optimum(p, weight, values), weight, values) == pytest.approx(p, abs=1e-7)


def test_the_worked_example():
    """0, 1 and 2 with 0.5, 0.3 and 0.2, and the weight 1: mu solves a cubic equation."""
    p, values = np.array([0.5, 0.3, 0.2]), np.arange(3.0)
    far = distances(values) @ p
    assert far == pytest.approx([0.7, 0.7, 1.3])
    q = optimum(p, 1.0, values)
    mu = p[0] / q[0] - far[0]
    assert p / (mu + far) == pytest.approx(q)
    assert q[2] < p[2] and q[0] > p[0]
    assert expected_crps(q, p) > expected_crps(p, p)


def test_a_certain_number_stays_certain():
    p, values = np.array([0.0, 1.0, 0.0]), np.arange(3.0)
    assert optimum(p, 4.0, values) == pytest.approx(p)

import itertools
import random

import pytest

import ntl

NUMBER = {
    "value": 4.0,
    "support": [
        {"value": 5, "text": "5", "probability": 0.4},
        {"value": 1, "text": "1", "probability": 0.2},
        {"value": 4, "text": "4", "probability": 0.2},
    ],
    "mass": {"closed": 0.8, "invalid": 0.15, "open": 0.05},
    "reason": None,
}


def found(values, probabilities):
    support = [{"value": value, "probability": p} for value, p in zip(values, probabilities)]
    mass = {"closed": 1, "invalid": 0, "open": 0}
    return ntl.Distribution.from_response({"value": values[0], "support": support, "mass": mass})


def test_probabilities_are_conditional_on_a_number():
    stars = ntl.Distribution.from_response(NUMBER)
    assert stars.values == (1, 4, 5)
    assert stars.probabilities == pytest.approx((0.25, 0.25, 0.5))
    assert stars.mass == ntl.Mass(0.8, 0.15, 0.05)
    assert (stars.value, stars.mode, stars.median) == (4, 5, 4)
    assert stars.mean == pytest.approx(3.75)
    assert stars.std == pytest.approx((0.25 * 2.75**2 + 0.25 * 0.25**2 + 0.5 * 1.25**2) ** 0.5)
    assert [stars.cdf(x) for x in (0, 1, 4.5, 5)] == pytest.approx([0, 0.25, 0.5, 1])
    assert stars.interval(0.8) == (1, 5)
    assert "NaN" not in stars._repr_html_()


def test_quantiles_invert_the_cumulative_distribution():
    random.seed(3)
    for _ in range(50):
        values = sorted(random.sample(range(-50, 50), 8))
        weights = [random.random() for _ in values]
        distribution = found(values, [weight / sum(weights) for weight in weights])
        for q in (0, 0.01, 0.3, 0.5, 0.99, 1):
            value = distribution.quantile(q)
            assert distribution.cdf(value) >= q - 1e-9
            assert q == 0 or distribution.cdf(value - 0.5) < q


def test_crps_equals_its_definition():
    random.seed(4)
    for _ in range(20):
        values = sorted(random.uniform(-9, 9) for _ in range(6))
        weights = [random.random() for _ in values]
        p = [weight / sum(weights) for weight in weights]
        y = random.uniform(-12, 12)
        pairs = itertools.product(range(6), repeat=2)
        spread = sum(p[i] * p[j] * abs(values[i] - values[j]) for i, j in pairs)
        want = sum(q * abs(value - y) for q, value in zip(p, values)) - spread / 2
        assert found(values, p).crps(y) == pytest.approx(want)


def test_samples_have_the_probabilities():
    drawn = found([1, 2], [0.25, 0.75]).sample(4000, seed=1)
    assert drawn.count(2) / 4000 == pytest.approx(0.75, abs=0.03)


def test_a_text_without_a_number_has_a_reason_and_no_estimates():
    mass = {"closed": 0, "invalid": 1, "open": 0}
    nothing = ntl.Distribution.from_response({"value": None, "support": [], "mass": mass, "reason": "it wrote `yes`"})
    assert nothing.value is None
    for estimate in (lambda: nothing.mean, lambda: nothing.quantile(0.5), lambda: nothing.crps(1)):
        with pytest.raises(ntl.NoNumber, match="it wrote `yes`"):
            estimate()
    assert "no number" in nothing._repr_html_()


def test_mean_crps_names_lists_of_different_lengths():
    with pytest.raises(ValueError, match="1 distributions and 2 outcomes"):
        ntl.mean_crps([found([1], [1])], [1, 2])

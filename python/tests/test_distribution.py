import itertools
import math
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
    assert stars.unknown == pytest.approx(0.05)


def test_quantiles_and_cumulative_probabilities_have_bounds_for_the_unknown_mass():
    stars = ntl.Distribution.from_response(NUMBER)
    # The mass that may be on numbers is 0.85: 1, 4 and 5 have 0.2, 0.2 and 0.4, and 0.05 is anywhere.
    assert stars.cdf_bounds(1) == pytest.approx((0.2 / 0.85, 0.25 / 0.85))
    assert stars.quantile_bounds(0.5) == (4, 5)
    assert stars.quantile_bounds(0.9) == (5, 5)
    assert stars.quantile_bounds(0.05) == (-math.inf, 1)
    assert stars.quantile_bounds(0.95) == (5, math.inf)
    certain = found([1, 2], [0.5, 0.5])
    assert [certain.quantile_bounds(q) for q in (0, 0.5, 0.51, 1)] == [(1, 1), (1, 1), (2, 2), (2, 2)]


def test_numbers_that_the_response_does_not_list_are_unknown():
    mass = {"closed": 0.9, "invalid": 0.1, "open": 0}
    listed = ntl.Distribution.from_response({"value": 3, "support": [{"value": 3, "probability": 0.6}], "mass": mass})
    assert listed.unknown == pytest.approx(0.3)
    assert listed.cdf_bounds(3) == pytest.approx((2 / 3, 1))
    unlisted = ntl.Distribution.from_response({"value": 3, "support": [], "mass": mass})
    with pytest.raises(ntl.NoNumber, match="larger `support`"):
        unlisted.quantile(0.5)


def test_bounds_contain_every_distribution_of_the_unknown_mass():
    random.seed(5)
    for _ in range(200):
        values = sorted(random.sample(range(-9, 9), 5))
        weights = [random.random() for _ in range(5)]
        total = sum(weights) / 0.9
        support = [{"value": value, "probability": weight / total} for value, weight in zip(values, weights)]
        mass = {"closed": 0.9, "invalid": 0.0, "open": 0.1}
        given = ntl.Distribution.from_response({"value": values[0], "support": support, "mass": mass})
        # Parts of the open mass become numbers, and the others something else.
        points = [(entry["value"], entry["probability"]) for entry in support]
        points += [(random.randrange(-20, 20), 0.1 * random.random() / 3) for _ in range(3)]
        closed = sum(p for _, p in points)
        points.sort()
        possible = found([value for value, _ in points], [p / closed for _, p in points])
        for q in (0.01, 0.3, 0.5, 0.7, 0.99):
            low, high = given.quantile_bounds(q)
            assert low <= possible.quantile(q) <= high
        for x in range(-10, 10, 3):
            low, high = given.cdf_bounds(x)
            assert low - 1e-9 <= possible.cdf(x) <= high + 1e-9


def test_a_notebook_shows_a_picture_with_the_estimates():
    shown = ntl.Distribution.from_response(NUMBER)._repr_html_()
    assert "<b>4</b>, median 4, 90% interval 1 to 5, 80.0% of the probability is on numbers, 5.0% is unknown" in shown
    assert shown.count("<rect") == 3
    assert found([7], [1])._repr_html_().count("<rect") == 1
    many = found(list(range(1000)), [0.001] * 1000)
    assert many._repr_html_().count("<rect") == 48


def test_a_plot_has_a_line_for_each_value():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    axes = ntl.Distribution.from_response(NUMBER).plot()
    lines = axes.collections[0].get_segments()
    assert [line[1].tolist() for line in lines] == [[1, 0.25], [4, 0.25], [5, 0.5]]


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
    distribution = found([1, 2], [0.25, 0.75])
    drawn = distribution.sample(4000, seed=1)
    assert drawn == distribution.sample(4000, seed=1) != distribution.sample(4000, seed=2)
    assert drawn.count(2) / 4000 == pytest.approx(0.75, abs=0.03)


def test_a_text_without_a_number_has_a_reason_and_no_estimates():
    mass = {"closed": 0, "invalid": 1, "open": 0}
    nothing = ntl.Distribution.from_response({"value": None, "support": [], "mass": mass, "reason": "it wrote `yes`"})
    assert nothing.value is None
    for estimate in (lambda: nothing.mean, lambda: nothing.quantile(0.5), lambda: nothing.crps(1)):
        with pytest.raises(ntl.NoNumber, match="it wrote `yes`"):
            estimate()
    assert "<b>no value</b>" in nothing._repr_html_() and "it wrote `yes`" in nothing._repr_html_()


def test_mean_crps_names_lists_of_different_lengths():
    with pytest.raises(ValueError, match="1 distributions and 2 outcomes"):
        ntl.mean_crps([found([1], [1])], [1, 2])

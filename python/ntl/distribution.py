"""The distribution of the number that a model writes."""

from __future__ import annotations

import bisect
import html
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import NoNumber

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Sums of probabilities are rounded.
EPSILON = 1e-9
BINS = 48


@dataclass(frozen=True)
class Mass:
    """Shares of the probability: on complete numbers, on other texts, and unexplored. They add up to 1."""

    closed: float
    invalid: float
    open: float

    @classmethod
    def from_response(cls, mass: Mapping[str, Any]) -> Mass:
        return cls(float(mass["closed"]), float(mass["invalid"]), float(mass["open"]))


@dataclass(frozen=True)
class Sampled:
    """Draws of the mass that the search left open, and the standard error of the server's `value`, if it has one."""

    draws: int
    standard_error: float | None

    @classmethod
    def from_response(cls, sampled: Mapping[str, Any]) -> Sampled:
        error = sampled["standard_error"]
        return cls(int(sampled["draws"]), None if error is None else float(error))


@dataclass(frozen=True)
class Distribution:
    """The distribution of a number, given that the model writes one of the found numbers.

    `values` are the found numbers in ascending order, and `probabilities` their shares, which add up to 1. So invalid mass
    (other texts, numbers out of range) counts for no estimate. Unknown mass does not either: `unknown` is the
    probability of open prefixes and of numbers that the response does not list (it lists at most 1,000).
    `cdf_bounds` and `quantile_bounds` contain the results for any distribution of the unknown mass. If open mass was
    `sampled`, the draws are among the found numbers, and these bounds hold only up to the error of the draws. The
    server's `value` is the estimate of the objective, with rigorous bounds in `raw["bounds"]`.
    """

    value: float | None
    values: tuple[float, ...]
    probabilities: tuple[float, ...]
    mass: Mass
    unknown: float = 0.0
    reason: str | None = None
    sampled: Sampled | None = None
    fingerprint: str | None = field(default=None, compare=False)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_response(cls, number: Mapping[str, Any], fingerprint: str | None = None) -> Distribution:
        """Reads the `number` object of a response. `fingerprint` is the response's `system_fingerprint`."""
        support = sorted((float(entry["value"]), float(entry["probability"])) for entry in number["support"])
        listed = math.fsum(probability for _, probability in support)
        if listed <= 0:
            support = []
        mass = Mass.from_response(number["mass"])
        return cls(
            value=None if number["value"] is None else float(number["value"]),
            values=tuple(value for value, _ in support),
            probabilities=tuple(probability / listed for _, probability in support),
            mass=mass,
            unknown=max(0.0, mass.open + mass.closed - listed),
            reason=number.get("reason"),
            sampled=Sampled.from_response(number["sampled"]) if number.get("sampled") else None,
            fingerprint=fingerprint,
            raw=number,
        )

    @property
    def mean(self) -> float:
        """The plain mean. Improbable outliers move it far; `value` of the objective "mean" leaves them out."""
        self._require_values()
        return math.fsum(value * p for value, p in zip(self.values, self.probabilities))

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    @property
    def mode(self) -> float:
        """The most probable value; the smallest one if there are several."""
        self._require_values()
        return self.values[self.probabilities.index(max(self.probabilities))]

    @property
    def std(self) -> float:
        mean = self.mean
        return math.sqrt(math.fsum(p * (value - mean) ** 2 for value, p in zip(self.values, self.probabilities)))

    def quantile(self, q: float) -> float:
        """The smallest value whose cumulative probability is at least `q`."""
        _check_share(q)
        self._require_values()
        return _reaching(self.values, self.probabilities, q)

    def quantile_bounds(self, q: float) -> tuple[float, float]:
        """The smallest and the largest quantile `q` that the unknown mass allows. An end may be infinite.

        The server's bounds of the quantiles in its response are narrower if the request has a `range` or `scale`.
        """
        _check_share(q)
        self._require_values()
        known, unknown = self._shares()
        weights = [known * p for p in self.probabilities]
        # All of the unknown mass is below the known values, and then above them.
        low = -math.inf if unknown > EPSILON and unknown >= q else _reaching(self.values, weights, q - unknown)
        high = math.inf if known < q - EPSILON else _reaching(self.values, weights, q)
        return low, high

    def cdf(self, x: float) -> float:
        """The probability that the number is at most `x`."""
        self._require_values()
        return min(1.0, math.fsum(self.probabilities[: bisect.bisect_right(self.values, x)]))

    def cdf_bounds(self, x: float) -> tuple[float, float]:
        """The smallest and the largest probability of at most `x` that the unknown mass allows."""
        known, unknown = self._shares()
        share = self.cdf(x) * known
        return share, min(1.0, share + unknown)

    def interval(self, coverage: float = 0.9) -> tuple[float, float]:
        """The interval between the two quantiles that leave out equal shares on both sides.

        It is the model's own interval. A calibrated one is in `raw["interval"]` if the request has `interval` and the
        server has a calibration.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be between 0 and 1, not {coverage}")
        tail = (1 - coverage) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def sample(self, n: int, seed: int | None = None) -> list[float]:
        """Draws `n` independent numbers."""
        self._require_values()
        return random.Random(seed).choices(self.values, self.probabilities, k=n)

    def crps(self, y: float) -> float:
        """The continuous ranked probability score of the outcome `y`: E|X - y| - E|X - X'| / 2."""
        self._require_values()
        distance = math.fsum(p * abs(value - y) for value, p in zip(self.values, self.probabilities))
        # With sorted values, E|X - X'| = 2 * sum of F * (1 - F) * gap.
        spread, cumulative = 0.0, 0.0
        for index in range(len(self.values) - 1):
            cumulative += self.probabilities[index]
            spread += cumulative * (1 - cumulative) * (self.values[index + 1] - self.values[index])
        return distance - spread

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the probabilities as vertical lines with matplotlib, and `value` as a dashed one."""
        from matplotlib import pyplot

        self._require_values()
        axes = ax if ax is not None else pyplot.gca()
        axes.vlines(self.values, 0, self.probabilities)
        if self.value is not None:
            axes.axvline(self.value, linestyle="--", color="gray")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("probability")
        return axes

    def _shares(self) -> tuple[float, float]:
        """The known and the unknown mass, as shares of the mass that may be on numbers."""
        listed = self.mass.closed + self.mass.open - self.unknown
        total = listed + self.unknown
        return (listed / total, self.unknown / total) if total > 0 else (0.0, 0.0)

    def _require_values(self) -> None:
        if self.values:
            return
        if self.mass.closed > 0:
            raise NoNumber("the response lists no values; request a larger `support`")
        raise NoNumber(self.reason or "the model wrote no number")

    def _repr_html_(self) -> str:
        """A histogram and the most important figures, for notebooks."""
        shown = "no value" if self.value is None else f"{self.value:.6g}"
        parts = [f"<b>{shown}</b>"]
        if self.values:
            low, high = self.interval(0.9)
            parts.append(f"median {self.median:.6g}, 90% interval {low:.6g} to {high:.6g}")
        parts.append(f"{self.mass.closed:.1%} of the probability is on numbers")
        if self.unknown >= 0.0005:
            parts.append(f"{self.unknown:.1%} is unknown")
        reason = f"<p>{html.escape(self.reason)}</p>" if self.reason else ""
        return f"<p>{', '.join(parts)}</p>{reason}{self._histogram()}"

    def _histogram(self) -> str:
        """A bar for each value, or for each of `BINS` equal parts of the range without 0.5% on both sides."""
        if not self.values:
            return ""
        low, high = self.interval(0.99)
        width = (high - low) or 1.0
        heights = [0.0] * BINS
        for value, p in zip(self.values, self.probabilities):
            if low <= value <= high:
                heights[min(int((value - low) / width * BINS), BINS - 1)] += p
        tallest = max(heights)
        bars = "".join(
            f'<rect x="{8 * index}" y="{80 - 76 * height / tallest:.1f}" width="7" height="{76 * height / tallest:.1f}">'
            f"<title>{height:.1%}</title></rect>"
            for index, height in enumerate(heights)
            if height > 0
        )
        text = 'font-size="11" font-family="sans-serif"'
        return (
            f'<svg width="{8 * BINS}" height="96" fill="#4a7" role="img">{bars}<g fill="gray" {text}>'
            f'<text y="93">{low:.6g}</text><text x="{8 * BINS}" y="93" text-anchor="end">{high:.6g}</text></g></svg>'
        )


def mean_crps(distributions: Sequence[Distribution], outcomes: Sequence[float]) -> float:
    """The mean CRPS of predictions, one per outcome."""
    if len(distributions) != len(outcomes):
        raise ValueError(f"there are {len(distributions)} distributions and {len(outcomes)} outcomes")
    if not outcomes:
        raise ValueError("there are no outcomes")
    return sum(found.crps(y) for found, y in zip(distributions, outcomes)) / len(outcomes)


def _check_share(q: float) -> None:
    if not 0 <= q <= 1:
        raise ValueError(f"q must be from 0 to 1, not {q}")


def _reaching(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The first value at which the sum of the weights reaches the share."""
    cumulative = 0.0
    for value, weight in zip(values, weights):
        cumulative += weight
        if cumulative >= share - EPSILON:
            return value
    return values[-1]

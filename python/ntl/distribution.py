"""The distribution of the number that a model writes."""

from __future__ import annotations

import bisect
import html
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Mass:
    """Shares of the probability: on numbers, on other texts, and unexplored. They add up to 1."""

    closed: float
    invalid: float
    open: float


@dataclass(frozen=True)
class Distribution:
    """The distribution of a number, conditional on the number being one.

    `values` are the numbers in ascending order, and `probabilities` their shares, which add up to 1. They are all
    numbers that the server has found, or the 1,000 most probable ones. `raw` is the server's `number` object, with
    its rigorous bounds.
    """

    value: float | None
    values: tuple[float, ...]
    probabilities: tuple[float, ...]
    mass: Mass
    reason: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_response(cls, number: Mapping[str, Any]) -> Distribution:
        """Reads the `number` object of a response."""
        support = sorted((float(entry["value"]), float(entry["probability"])) for entry in number.get("support") or [])
        total = sum(probability for _, probability in support)
        if not support and number.get("value") is not None:
            # A regression head predicts one value without a distribution.
            support, total = [(float(number["value"]), 1.0)], 1.0
        mass = number.get("mass") or {"closed": total, "invalid": 0.0, "open": 0.0}
        return cls(
            value=None if number.get("value") is None else float(number["value"]),
            values=tuple(value for value, _ in support),
            probabilities=tuple(probability / total for _, probability in support) if total > 0 else (),
            mass=Mass(float(mass["closed"]), float(mass["invalid"]), float(mass["open"])),
            reason=number.get("reason"),
            raw=number,
        )

    @property
    def mean(self) -> float:
        """The mean of the distribution. Unlike `value`, it includes improbable outliers."""
        self._require_values()
        return sum(value * probability for value, probability in zip(self.values, self.probabilities))

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    @property
    def mode(self) -> float:
        """The most probable value; the smallest one if there are several."""
        self._require_values()
        return self.values[max(range(len(self.values)), key=lambda index: self.probabilities[index])]

    @property
    def std(self) -> float:
        mean = self.mean
        variance = sum(p * (value - mean) ** 2 for value, p in zip(self.values, self.probabilities))
        return float(variance**0.5)

    def quantile(self, q: float) -> float:
        """The smallest value whose cumulative probability is at least `q`."""
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, not {q}")
        self._require_values()
        cumulative = 0.0
        for value, probability in zip(self.values, self.probabilities):
            cumulative += probability
            # Sums of probabilities are rounded.
            if cumulative >= q - 1e-12:
                return value
        return self.values[-1]

    def cdf(self, x: float) -> float:
        """The probability that the number is at most `x`."""
        self._require_values()
        return min(1.0, sum(self.probabilities[: bisect.bisect_right(self.values, x)]))

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
        distance = sum(p * abs(value - y) for value, p in zip(self.values, self.probabilities))
        # With sorted values, E|X - X'| = 2 * sum of F * (1 - F) * gap.
        spread, cumulative = 0.0, 0.0
        for index in range(len(self.values) - 1):
            cumulative += self.probabilities[index]
            spread += cumulative * (1 - cumulative) * (self.values[index + 1] - self.values[index])
        return distance - spread

    def plot(self, ax: Any = None) -> Any:
        """Draws the probabilities as vertical lines with matplotlib, and returns the axes."""
        import matplotlib.pyplot as plt

        self._require_values()
        axes = ax if ax is not None else plt.gca()
        axes.vlines(self.values, 0, self.probabilities)
        if self.value is not None:
            axes.axvline(self.value, linestyle="--", color="gray")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("probability")
        return axes

    def _require_values(self) -> None:
        if not self.values:
            from .errors import NoNumber

            raise NoNumber(self.reason or "the model wrote no number")

    def _repr_html_(self) -> str:
        """A bar for each of the most probable values, for notebooks."""
        rows = sorted(zip(self.values, self.probabilities), key=lambda row: -row[1])[:20]
        bars = "".join(
            f'<tr><td style="text-align:right">{value:g}</td><td><div style="background:#4a7;height:0.8em;'
            f'width:{200 * probability:.0f}px"></div></td><td>{probability:.1%}</td></tr>'
            for value, probability in sorted(rows)
        )
        shown = "no number" if self.value is None else f"{self.value:g}"
        reason = f"<p>{html.escape(self.reason)}</p>" if self.reason else ""
        numbers = f"{self.mass.closed:.1%} of the probability is on numbers"
        return f"<p><b>{shown}</b>, {numbers}</p>{reason}<table>{bars}</table>"


def mean_crps(distributions: Sequence[Distribution], outcomes: Sequence[float]) -> float:
    """The mean CRPS of predictions, one per outcome."""
    if len(distributions) != len(outcomes):
        raise ValueError(f"there are {len(distributions)} distributions and {len(outcomes)} outcomes")
    if not outcomes:
        raise ValueError("there are no outcomes")
    return sum(found.crps(y) for found, y in zip(distributions, outcomes)) / len(outcomes)

"""A scikit-learn regressor whose predictions are distributions of a language model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import RegressorMixin

from ._estimator import TextEstimator, conformal_quantile
from .client import Client
from .columns import cached
from .distribution import Distribution, mean_crps
from .errors import NoNumber

if TYPE_CHECKING:
    from numpy.typing import NDArray

DECIMALS_MAX = 6


class NumberRegressor(RegressorMixin, TextEstimator):  # type: ignore[misc]
    """Predicts numbers from texts with examples in the prompt of a language model.

    `fit` keeps rows as examples, finds the range and the number of decimals of `y`, and calibrates intervals on rows that
    it holds out. Nothing is trained.

    Parameters
    ----------
    client: the `ntl.Client` of the model; by default, a server on this machine.
    template: the text of one row up to the number, with the columns of a table in braces, or `{text}` for a list of
        texts. By default a line `NAME: VALUE` for each column, or the text, and a line `=`.
    examples: the number of labelled rows in each prompt.
    selection: "nearest" (by TF-IDF) or "random" examples.
    coverage: the share of outcomes that `predict_interval` should contain.
    range: the smallest and largest possible number; by default, the range of `y`, widened by a tenth on both sides.
    objective: the server's estimate for `predict`: "mean", "median", "mode", "auto" or {"quantile": q}.
    options: further fields of the request's `number` object. A large `tolerance` or a small `nodes_max` limits the search
        of a model that is unsure among numbers with many digits.
    calibration: the share of rows that `fit` holds out to calibrate intervals; 0 leaves intervals uncalibrated.
    seed: of the choice of rows.
    verbose: whether a line on standard error counts the requests.
    cache: a file that keeps the responses, like the cache of `ntl.predict`.
    """

    ending = "\n="
    separator = " "

    def __init__(
        self,
        client: Client | None = None,
        *,
        template: str | None = None,
        examples: int = 8,
        selection: str = "nearest",
        coverage: float = 0.9,
        range: tuple[float, float] | None = None,
        objective: str | Mapping[str, float] = "mean",
        options: Mapping[str, Any] | None = None,
        calibration: float = 0.2,
        seed: int = 0,
        verbose: bool = False,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        self.client = client
        self.template = template
        self.examples = examples
        self.selection = selection
        self.coverage = coverage
        self.range = range
        self.objective = objective
        self.options = options
        self.calibration = calibration
        self.seed = seed
        self.verbose = verbose
        self.cache = cache

    def fit(self, X: Any, y: Any) -> NumberRegressor:
        """`X`: a list or a column of texts, or a table. `y`: a number for each row."""
        self._check_parameters()
        texts = self._rows(X, reset=True)
        labels = self._labels(y, texts).astype(float)
        self.decimals_ = _decimals(labels)
        self.range_ = tuple(self.range) if self.range is not None else _range(labels)
        kept, held_out = self._split(len(texts))
        self._keep([texts[index] for index in kept], [f"{labels[index]:.{self.decimals_}f}" for index in kept])
        self.offset_: float | None = None
        if held_out:
            self.offset_ = self._offset([texts[index] for index in held_out], labels[held_out])
        return self

    def predict_distribution(self, X: Any) -> list[Distribution]:
        """The distribution of each row's number."""
        return self._distributions(self._rows(X, reset=False))

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The estimate of `objective` for each row. A row for which the model writes no number is an error."""
        values = []
        for index, found in enumerate(self.predict_distribution(X)):
            if found.value is None:
                raise NoNumber(f"row {index}: {found.reason or 'the model wrote no number'}")
            values.append(found.value)
        return np.array(values)

    def predict_quantiles(self, X: Any, q: Sequence[float]) -> NDArray[np.float64]:
        """The quantiles `q` of each row's distribution, with the shape (rows, quantiles)."""
        return np.array([[found.quantile(share) for share in q] for found in self.predict_distribution(X)])

    def predict_interval(self, X: Any) -> NDArray[np.float64]:
        """An interval for each row, with the shape (rows, 2).

        It contains the outcome of a new row with at least the probability `coverage` if new rows are exchangeable with
        those of `fit` (split conformal prediction over the model's quantiles, CQR). If `fit` had too few rows to
        calibrate, it is the model's own interval, with a warning.
        """
        found = self.predict_distribution(X)
        if self.offset_ is None:
            warnings.warn("too few rows calibrated these intervals: they are the model's own", stacklevel=2)
        intervals = np.array([one.interval(self.coverage) for one in found]).reshape(-1, 2)
        intervals += np.array([-1.0, 1.0]) * (self.offset_ or 0.0)
        # A negative offset can move the ends past each other. Such an interval is a point.
        is_crossed = intervals[:, 0] > intervals[:, 1]
        intervals[is_crossed] = intervals[is_crossed].mean(axis=1, keepdims=True)
        return intervals

    def crps(self, X: Any, y: Any) -> float:
        """The mean continuous ranked probability score; lower is better."""
        return mean_crps(self.predict_distribution(X), [float(label) for label in np.asarray(y, dtype=float).ravel()])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # How good predictions are depends on the model.
        tags.regressor_tags.poor_score = True
        return tags

    def _distributions(self, texts: list[str]) -> list[Distribution]:
        options: dict[str, Any] = {
            "objective": self.objective,
            "range": list(self.range_),
            "decimals_max": self.decimals_,
            "sign": self.range_[0] < 0,
            **(self.options or {}),
        }
        prompts = [self._prompt(text) for text in texts]
        if self.cache is None:
            return self._client().numbers(prompts, progress=self.verbose, **options)
        found = cached(self._client(), prompts, options, self.cache, self.verbose)
        return [found[prompt] for prompt in prompts]

    def _offset(self, texts: list[str], labels: NDArray[np.float64]) -> float:
        """The distance by which intervals have to grow (CQR, Romano et al. 2019)."""
        scores = []
        for found, label in zip(self._distributions(texts), labels):
            low, high = found.interval(self.coverage)
            scores.append(float(max(low - label, label - high)))
        return conformal_quantile(scores, self.coverage)


def _decimals(labels: NDArray[np.float64]) -> int:
    """The number of decimals that write every label, at most `DECIMALS_MAX`."""
    for decimals in range(DECIMALS_MAX):
        if np.array_equal(np.round(labels, decimals), labels):
            return decimals
    return DECIMALS_MAX


def _range(labels: NDArray[np.float64]) -> tuple[float, float]:
    """The range of the labels, widened by a tenth on both sides, but not beyond 0."""
    low, high = float(labels.min()), float(labels.max())
    margin = 0.1 * (high - low) or max(1.0, 0.1 * abs(low))
    low = max(0.0, low - margin) if low >= 0 else low - margin
    high = min(0.0, high + margin) if high <= 0 else high + margin
    return low, high

"""A scikit-learn estimator whose predictions are distributions of a language model."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.utils.validation import check_is_fitted

from .client import Client
from .distribution import Distribution, mean_crps
from .errors import NoNumber

if TYPE_CHECKING:
    from numpy.typing import NDArray

SELECTIONS = ("nearest", "random")
DECIMALS_MAX = 6


class NumberRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts numbers from texts with examples in the prompt of a language model.

    `fit` keeps examples, finds the range and the number of decimals of `y`, and calibrates intervals on rows that it
    holds out. Nothing is trained.

    Parameters
    ----------
    client: the `ntl.Client` of the model; by default, a server on this machine.
    template: the text of one row, with the fields of a DataFrame's row in braces, or `{text}` for a list of texts.
    examples: the number of labelled rows in each prompt.
    selection: "nearest" (by TF-IDF) or "random" examples.
    coverage: the share of outcomes that `predict_interval` should contain.
    range: the smallest and largest possible number; by default, the range of `y`, widened by a tenth on both sides.
    objective: the server's estimate for `predict`: "mean", "median", "mode" or {"quantile": q}.
    calibration: the share of rows that `fit` holds out to calibrate intervals; 0 leaves intervals uncalibrated.
    seed: of the choice of rows.
    """

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
        calibration: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.client = client
        self.template = template
        self.examples = examples
        self.selection = selection
        self.coverage = coverage
        self.range = range
        self.objective = objective
        self.calibration = calibration
        self.seed = seed

    def fit(self, X: Any, y: Any) -> NumberRegressor:
        """`X`: a list of texts, a column of texts, or a DataFrame. `y`: a number for each."""
        self._check_parameters()
        texts, labels = self._texts(X), np.asarray(y, dtype=float).ravel()
        if len(texts) != len(labels):
            raise ValueError(f"X has {len(texts)} rows and y has {len(labels)}")
        if len(texts) == 0:
            raise ValueError("X has no rows")
        if not np.isfinite(labels).all():
            raise ValueError(f"y[{int(np.flatnonzero(~np.isfinite(labels))[0])}] is not a finite number")
        self.decimals_ = _decimals(labels)
        self.range_ = self.range if self.range is not None else _range(labels)
        order = list(range(len(texts)))
        random.Random(self.seed).shuffle(order)
        held_out = order[: self._held_out(len(texts))]
        kept = sorted(order[len(held_out) :])
        self._keep([texts[index] for index in kept], labels[kept])
        self.offset_: float | None = None
        if held_out:
            self.offset_ = self._calibrated([texts[index] for index in held_out], labels[held_out])
        # With the intervals calibrated, the examples may come from all rows.
        self._keep(texts, labels)
        return self

    def predict_distribution(self, X: Any) -> list[Distribution]:
        """The distribution of each row's number."""
        check_is_fitted(self, "texts_")
        return self._distributions(self._texts(X))

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The estimate of `objective` for each row."""
        return np.array([_value(found) for found in self.predict_distribution(X)])

    def predict_quantiles(self, X: Any, q: Sequence[float]) -> NDArray[np.float64]:
        """The quantiles `q` of each row's distribution, with the shape (rows, quantiles)."""
        return np.array([[found.quantile(share) for share in q] for found in self.predict_distribution(X)])

    def predict_interval(self, X: Any) -> NDArray[np.float64]:
        """An interval for each row, with the shape (rows, 2).

        If `fit` held out enough rows, it contains at least the share `coverage` of outcomes of exchangeable rows (split
        conformal prediction over the model's quantiles, CQR). The bound may be infinite for few rows.
        """
        offset = getattr(self, "offset_", None) or 0.0
        intervals = [found.interval(self.coverage) for found in self.predict_distribution(X)]
        return np.array([[low - offset, high + offset] for low, high in intervals])

    def crps(self, X: Any, y: Any) -> float:
        """The mean continuous ranked probability score; lower is better."""
        return mean_crps(self.predict_distribution(X), [float(label) for label in np.asarray(y, dtype=float).ravel()])

    def prompt(self, text: str) -> str:
        """The prompt for the text of one row."""
        check_is_fitted(self, "texts_")
        chosen = self._examples(text)
        shown = [f"{self.texts_[index]}\n= {_shown(self.labels_[index], self.decimals_)}\n\n" for index in chosen]
        return "".join(shown) + f"{text}\n="

    def _check_parameters(self) -> None:
        if self.examples < 0:
            raise ValueError(f"examples must be at least 0, not {self.examples}")
        if self.selection not in SELECTIONS:
            raise ValueError(f"selection must be one of {', '.join(SELECTIONS)}, not {self.selection!r}")
        if not 0 < self.coverage < 1:
            raise ValueError(f"coverage must be between 0 and 1, not {self.coverage}")
        if not 0 <= self.calibration < 1:
            raise ValueError(f"calibration must be from 0 to less than 1, not {self.calibration}")

    def _held_out(self, rows: int) -> int:
        """The number of rows that calibrate: at least one example must be left."""
        return min(math.ceil(self.calibration * rows), rows - 1)

    def _keep(self, texts: list[str], labels: NDArray[np.float64]) -> None:
        self.texts_, self.labels_ = texts, labels
        if self.selection == "nearest" and self.examples:
            # Single characters count as words, so that short texts have some.
            self.vectorizer_ = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]")
            self.vectors_ = self.vectorizer_.fit_transform([text or "." for text in texts])

    def _examples(self, text: str) -> list[int]:
        """Indices of the rows in the prompt, the most similar one last."""
        count = min(self.examples, len(self.texts_))
        if count == 0:
            return []
        if self.selection == "random":
            return random.Random(f"{self.seed} {text}").sample(range(len(self.texts_)), count)
        similarity = (self.vectors_ @ self.vectorizer_.transform([text]).T).toarray().ravel()
        nearest = np.argsort(-similarity, kind="stable")[:count]
        return [int(index) for index in nearest[::-1]]

    def _distributions(self, texts: list[str]) -> list[Distribution]:
        client = self.client if self.client is not None else Client()
        options: dict[str, Any] = {
            "objective": self.objective,
            "range": list(self.range_),
            "decimals_max": self.decimals_,
            "sign": self.range_[0] < 0,
        }
        return client.numbers([self.prompt(text) for text in texts], **options)

    def _calibrated(self, texts: list[str], labels: NDArray[np.float64]) -> float:
        """The distance by which intervals have to grow (CQR, Romano et al. 2019)."""
        scores = []
        for found, label in zip(self._distributions(texts), labels):
            low, high = found.interval(self.coverage)
            scores.append(max(low - label, label - high))
        rank = math.ceil((len(scores) + 1) * self.coverage)
        return sorted(scores)[rank - 1] if rank <= len(scores) else math.inf

    def _texts(self, X: Any) -> list[str]:
        if hasattr(X, "to_dict") and hasattr(X, "columns"):
            template = self.template or "\n".join(f"{name}: {{{name}}}" for name in X.columns)
            return [_filled(template, row) for row in X.to_dict(orient="records")]
        template = self.template or "{text}"
        if isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] == 1:
            X = X.ravel()
        return [_filled(template, {"text": text}) for text in X]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags




def _filled(template: str, row: Mapping[str, Any]) -> str:
    """The template with its fields replaced once, so that braces in the data stay."""

    def field(match: re.Match[str]) -> str:
        if match[1] not in row:
            raise ValueError(f"the template names {{{match[1]}}}, and a row has only {', '.join(map(str, row))}")
        return str(row[match[1]])

    return re.sub(r"\{([^{}]+)\}", field, template)


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


def _shown(label: float, decimals: int) -> str:
    return f"{label:.{decimals}f}"


def _value(found: Distribution) -> float:
    if found.value is None:
        raise NoNumber(found.reason or "the model wrote no number")
    return found.value

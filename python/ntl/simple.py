"""Plain models as estimators with distributions: the median, and a ridge regression on words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

from ._estimator import conformal_quantile
from ._text import texts_of
from .distribution import Distribution, Mass, mean_crps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

FOLDS = 5
ALPHAS = np.logspace(-3, 3, 13)
# More errors are represented by this many of their quantiles.
ERRORS_MAX = 500
WORDS: Mapping[str, Any] = {"ngram_range": (1, 2), "token_pattern": r"(?u)\w+|[^\w\s]", "sublinear_tf": True}


class TextModel(RegressorMixin):  # type: ignore[misc]
    """A model of texts that has the methods of `ntl.NumberRegressor`.

    Its distribution is its prediction plus its errors on rows that it did not learn from. `coverage` is the share of
    outcomes that its intervals should contain.
    """

    kind: str

    def __init__(self, coverage: float = 0.9, seed: int = 0) -> None:
        self.coverage = coverage
        self.seed = seed

    def fit(self, X: Any, y: Any) -> TextModel:
        """`X`: a list or a column of texts. `y`: a number for each of them."""
        raise NotImplementedError

    def predict(self, X: Any) -> Numbers:
        return self._predict(texts_of(X, None))

    def predict_distribution(self, X: Any) -> list[Distribution]:
        """The distribution of each row's number."""
        found = []
        for value in self.predict(X):
            values = tuple(float(value + error) for error in self.errors_)
            shares = (1 / len(values),) * len(values)
            found.append(Distribution(float(value), values, shares, Mass(1.0, 0.0, 0.0)))
        return found

    def predict_quantiles(self, X: Any, q: Sequence[float]) -> Numbers:
        """The quantiles `q` of each row's distribution, with the shape (rows, quantiles)."""
        return np.array([[found.quantile(share) for share in q] for found in self.predict_distribution(X)])

    def predict_interval(self, X: Any) -> Numbers:
        """An interval for each row, with the shape (rows, 2): the prediction and the absolute error that the share
        `coverage` of the rows did not exceed when they were held out."""
        values = self.predict(X)
        return np.column_stack([values - self.radius_, values + self.radius_])

    def crps(self, X: Any, y: Any) -> float:
        """The mean continuous ranked probability score; lower is better."""
        return mean_crps(self.predict_distribution(X), [float(number) for number in np.asarray(y).ravel()])

    def state(self) -> dict[str, Any]:
        """The fitted values, for JSON."""
        errors = [float(error) for error in self.errors_]
        return {"coverage": self.coverage, "radius": self.radius_, "errors": errors, **self._state()}

    def restore(self, state: Mapping[str, Any]) -> TextModel:
        """Becomes the model whose `state` this is."""
        self.coverage, self.radius_ = state["coverage"], state["radius"]
        self.errors_ = np.array(state["errors"])
        self._restore(state)
        return self

    def _calibrate(self, errors: Numbers) -> None:
        """Keeps the errors of rows that were not learnt from."""
        # The coverage, or the largest one that this many errors have.
        coverage = min(self.coverage, len(errors) / (len(errors) + 1))
        self.radius_ = conformal_quantile([float(error) for error in np.abs(errors)], coverage)
        if len(errors) > ERRORS_MAX:
            errors = np.quantile(errors, (np.arange(ERRORS_MAX) + 0.5) / ERRORS_MAX)
        self.errors_ = np.sort(errors)

    def _predict(self, texts: list[str]) -> Numbers:
        raise NotImplementedError

    def _state(self) -> dict[str, Any]:
        raise NotImplementedError

    def _restore(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


class PlainModel(TextModel):
    """A model without a language model. Its errors are those on held-out parts of the training rows."""

    title: str

    def fit(self, X: Any, y: Any) -> PlainModel:
        """`y` has at least as many numbers as `FOLDS`."""
        texts, numbers = texts_of(X, None), np.asarray(y, dtype=float)
        errors = np.empty(len(numbers))
        for kept, held_out in KFold(FOLDS, shuffle=True, random_state=self.seed).split(numbers):
            self._fit([texts[index] for index in kept], numbers[kept])
            errors[held_out] = numbers[held_out] - self.predict([texts[index] for index in held_out])
        self._fit(texts, numbers)
        self._calibrate(errors)
        return self

    def _fit(self, texts: list[str], numbers: Numbers) -> None:
        raise NotImplementedError


class Median(PlainModel):
    """Predicts the median of the training rows for every text."""

    kind, title = "median", "median"

    def _fit(self, texts: list[str], numbers: Numbers) -> None:
        self.value_ = float(np.median(numbers))

    def _predict(self, texts: list[str]) -> Numbers:
        return np.full(len(texts), self.value_)

    def _state(self) -> dict[str, Any]:
        return {"value": self.value_}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.value_ = float(state["value"])


class WordRidge(PlainModel):
    """A ridge regression on the TF-IDF of words and pairs of words."""

    kind, title = "tfidf-ridge", "TF-IDF ridge"

    def _fit(self, texts: list[str], numbers: Numbers) -> None:
        self.words_ = TfidfVectorizer(**WORDS)
        ridge = RidgeCV(ALPHAS).fit(self.words_.fit_transform(texts), numbers)
        self.weights_, self.offset_ = np.asarray(ridge.coef_), float(ridge.intercept_)

    def _predict(self, texts: list[str]) -> Numbers:
        counts: Any = self.words_.transform(texts)
        return np.asarray(counts @ self.weights_ + self.offset_)

    def _state(self) -> dict[str, Any]:
        words = self.words_.get_feature_names_out().tolist()
        idf, weights = self.words_.idf_.tolist(), self.weights_.tolist()
        return {"words": words, "idf": idf, "weights": weights, "offset": self.offset_}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.words_ = TfidfVectorizer(**WORDS, vocabulary=state["words"])
        self.words_.idf_ = np.array(state["idf"])
        self.weights_, self.offset_ = np.array(state["weights"]), float(state["offset"])

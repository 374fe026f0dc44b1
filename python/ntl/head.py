"""A ridge regression on the vectors that a served model has for texts (`/v1/embeddings`)."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

from ._estimator import rows_needed
from ._text import texts_of
from .client import Client
from .columns import cached_vectors
from .simple import TextModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

CALIBRATING, CALIBRATING_MAX = 0.2, 200
# Standardised features are many and of similar size, so useful penalties are larger than with TF-IDF.
ALPHAS = np.logspace(-2, 6, 17)
# Both kinds of models have a mean. A text that is too long for the model is cut, as for any other encoder.
VECTORS: Mapping[str, Any] = {"pooling": "mean", "truncate_prompt_tokens": -1}


class EmbeddingRidge(TextModel):
    """Predicts numbers from the vectors of a language model whose weights stay as they are.

    `fit` holds out rows that calibrate distributions and intervals (split conformal prediction). On the others it
    standardises the numbers of the vectors, and chooses the penalty by leave-one-out cross-validation.

    `cache` is a file that keeps the vectors, and `verbose` says whether a line on standard error counts the requests.
    """

    kind = "embedding-ridge"

    def __init__(
        self,
        client: Client,
        coverage: float = 0.9,
        seed: int = 0,
        *,
        cache: str | os.PathLike[str] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(coverage, seed)
        self.client = client
        self.cache = cache
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> EmbeddingRidge:
        """`X`: a list or a column of texts. `y`: a number for each of them."""
        vectors, numbers = self._vectors(texts_of(X, None)), np.asarray(y, dtype=float)
        order = list(range(len(numbers)))
        random.Random(self.seed).shuffle(order)
        share = min(math.ceil(CALIBRATING * len(order)), CALIBRATING_MAX)
        held_out = min(max(share, rows_needed(self.coverage)), len(order) // 2)
        learn, calibrate = order[held_out:], order[:held_out]
        scaler: Any = StandardScaler().fit(vectors[learn])
        ridge = RidgeCV(ALPHAS).fit(scaler.transform(vectors[learn]), numbers[learn])
        # The weights of the vectors as they are.
        self.weights_ = np.asarray(ridge.coef_ / scaler.scale_)
        self.offset_ = float(ridge.intercept_ - self.weights_ @ scaler.mean_)
        self._calibrate(numbers[calibrate] - self._values(vectors[calibrate]))
        return self

    def _predict(self, texts: list[str]) -> Numbers:
        return self._values(self._vectors(texts))

    def _values(self, vectors: Numbers) -> Numbers:
        return np.asarray(vectors @ self.weights_ + self.offset_)

    def _vectors(self, texts: list[str]) -> Numbers:
        if self.cache is None:
            return np.array(self.client.embed(texts, progress=self.verbose, **VECTORS))
        found = cached_vectors(self.client, texts, VECTORS, self.cache, self.verbose)
        return np.array([found[text] for text in texts])

    def _state(self) -> dict[str, Any]:
        return {"weights": self.weights_.tolist(), "offset": self.offset_}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.weights_, self.offset_ = np.array(state["weights"]), float(state["offset"])

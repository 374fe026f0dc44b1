"""The base of both estimators: texts of rows, examples for the prompt, and rows that calibrate."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from ._text import is_table, texts_of
from .client import Client

SELECTIONS = ("nearest", "random")
# Ranks of conformal prediction are rounded up, also from products such as 0.9 * 10.
ROUNDING = 1e-9


class TextEstimator(BaseEstimator):  # type: ignore[misc]
    """Keeps labelled rows as examples, and holds out others for calibration. Nothing is trained.

    X is a list or a column of texts, or a table, whose rows a template turns into texts.
    """

    client: Client | None
    template: str | None
    examples: int
    selection: str
    coverage: float
    calibration: float
    seed: int
    verbose: bool
    # The end of a row's text without a template, and the text between a row and its answer.
    ending = ""
    separator = "\n= "
    # They have no types.
    vectorizer_: Any
    vectors_: Any

    def prompts(self, X: Any) -> list[str]:
        """The text that the model reads for each row: its examples and the row."""
        return [self._prompt(text) for text in self._rows(X, reset=False)]

    def _prompt(self, text: str) -> str:
        shown = [f"{self.texts_[index]}{self.separator}{self.answers_[index]}\n\n" for index in self._examples(text)]
        return "".join(shown) + text

    def _client(self) -> Client:
        return self.client if self.client is not None else Client()

    def _rows(self, X: Any, reset: bool) -> list[str]:
        """The text of each row. `reset` is true in `fit`, which records the columns of a table."""
        if not reset:
            check_is_fitted(self, "texts_")
        if _is_array_of_texts(X, 2) and X.shape[1] == 1:
            X = X.ravel()
        if _is_column(X):
            return texts_of(X, self.template, self.ending)
        checked = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False)
        return texts_of(X if is_table(X) else checked, self.template, self.ending)

    def _labels(self, y: Any, texts: list[str]) -> Any:
        """`y` as an array with one label for each text."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(texts, labels)
        if len(texts) == 0:
            raise ValueError("X has no rows")
        if labels.dtype.kind == "c":
            raise ValueError("Complex data not supported")
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            index = int(np.flatnonzero(~np.isfinite(labels))[0])
            raise ValueError(f"y[{index}] is not a finite number: NaN and infinity are not labels")
        return labels

    def _check_parameters(self) -> None:
        if self.examples < 0:
            raise ValueError(f"examples must be at least 0, not {self.examples}")
        if self.selection not in SELECTIONS:
            raise ValueError(f"selection must be one of {', '.join(SELECTIONS)}, not {self.selection!r}")
        if not 0 < self.coverage < 1:
            raise ValueError(f"coverage must be between 0 and 1, not {self.coverage}")
        if not 0 <= self.calibration < 1:
            raise ValueError(f"calibration must be from 0 to less than 1, not {self.calibration}")

    def _split(self, count: int) -> tuple[list[int], list[int]]:
        """The rows that are examples, and those that calibrate.

        A row that calibrates is never an example: only then are its scores exchangeable with those of new rows. No row
        calibrates if that needs more than half of them.
        """
        order = list(range(count))
        random.Random(self.seed).shuffle(order)
        held_out = 0
        if self.calibration > 0:
            held_out = max(math.ceil(self.calibration * count), rows_needed(self.coverage))
        if held_out > count // 2:
            held_out = 0
        return sorted(order[held_out:]), sorted(order[:held_out])

    def _keep(self, texts: list[str], answers: list[str]) -> None:
        self.texts_, self.answers_ = texts, answers
        if self.selection == "nearest" and self.examples:
            # Single characters count as words, so that short texts have some.
            self.vectorizer_ = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]")
            self.vectors_ = self.vectorizer_.fit_transform([text if text.strip() else "." for text in texts])

    def _examples(self, text: str) -> list[int]:
        """The indices of the examples for a text, the most similar one last."""
        count = min(self.examples, len(self.texts_))
        if count == 0:
            return []
        if self.selection == "random":
            return random.Random(f"{self.seed} {text}").sample(range(len(self.texts_)), count)
        similarity = self.vectors_.dot(self.vectorizer_.transform([text]).transpose()).toarray().ravel()
        nearest = np.argsort(-similarity, kind="stable")[:count]
        return [int(index) for index in nearest[::-1]]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags


def conformal_quantile(scores: list[float], coverage: float) -> float:
    """The score that new scores do not exceed with the probability `coverage`: the ceil((n + 1) * coverage)-th one."""
    rank = math.ceil((len(scores) + 1) * coverage - ROUNDING)
    return sorted(scores)[rank - 1]


def rows_needed(coverage: float) -> int:
    """The fewest scores that have such a quantile: n with ceil((n + 1) * coverage) <= n."""
    return max(1, math.ceil(coverage / (1 - coverage) - ROUNDING))


def _is_column(X: Any) -> bool:
    if hasattr(X, "to_list") and not is_table(X):
        return True
    if _is_array_of_texts(X, 1):
        return True
    return isinstance(X, (list, tuple)) and bool(X) and all(text is None or isinstance(text, str) for text in X)


def _is_array_of_texts(X: Any, dimensions: int) -> bool:
    return isinstance(X, np.ndarray) and X.ndim == dimensions and X.dtype.kind in "OUT"

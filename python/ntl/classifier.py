"""A scikit-learn classifier that reads the probability of every label from a language model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from ._estimator import TextEstimator, conformal_quantile
from .client import Client
from .decisions import Choice, ChoiceAnswer

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Probabilities are rounded.
EPSILON = 1e-12


class DecisionClassifier(ClassifierMixin, TextEstimator):  # type: ignore[misc]
    """Predicts one of 2 to 255 labels from texts with `/v1/decisions`, with examples in the prompt.

    `fit` keeps rows as examples, and calibrates prediction sets on rows that it holds out. Nothing is trained.

    Parameters
    ----------
    client: the `ntl.Client` of the model; by default, a server on this machine.
    question: the question about each text.
    descriptions: the meaning of labels, for the model.
    template: the text of one row, with the columns of a table in braces, or `{text}` for a list of texts. By default
        a line `NAME: VALUE` for each column, or the text.
    examples: the number of labelled rows in each prompt.
    selection: "nearest" (by TF-IDF) or "random" examples.
    read: whether the model answers with a letter per label ("labels") or with the labels' own texts ("texts").
    orders: the number of orders of the labels to average over; each costs a prompt.
    coverage: how often `predict_set` should contain the right label.
    calibration: the share of rows that `fit` holds out to calibrate sets; 0 leaves sets uncalibrated.
    seed: of the choice of rows.
    verbose: whether a line on standard error counts the requests.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        question: str = "Which label does the last text have?",
        descriptions: Mapping[Any, str] | None = None,
        template: str | None = None,
        examples: int = 8,
        selection: str = "nearest",
        read: str = "labels",
        orders: int = 1,
        coverage: float = 0.9,
        calibration: float = 0.2,
        seed: int = 0,
        verbose: bool = False,
    ) -> None:
        self.client = client
        self.question = question
        self.descriptions = descriptions
        self.template = template
        self.examples = examples
        self.selection = selection
        self.read = read
        self.orders = orders
        self.coverage = coverage
        self.calibration = calibration
        self.seed = seed
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> DecisionClassifier:
        """`X`: a list or a column of texts, or a table. `y`: a label for each row."""
        self._check_parameters()
        texts = self._rows(X, reset=True)
        labels = self._labels(y, texts)
        check_classification_targets(labels)
        self.classes_, indices = np.unique(labels, return_inverse=True)
        names = [str(label) for label in self.classes_]
        if len(names) < 2:
            raise ValueError(f"a classifier needs at least 2 classes, and y has only 1 class: {names[0]}")
        about = self.descriptions or {}
        self.options_ = {name: about.get(label) for name, label in zip(names, self.classes_.tolist())}
        kept, held_out = self._split(len(texts))
        self._keep([texts[index] for index in kept], [names[indices[index]] for index in kept])
        self.threshold_: float | None = None
        if held_out:
            probabilities = self._probabilities([texts[index] for index in held_out])
            scores = 1 - probabilities[np.arange(len(held_out)), indices[held_out]]
            self.threshold_ = conformal_quantile(scores.tolist(), self.coverage)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each label, given that the model writes one of them; columns as in `classes_`.

        A row for which the model writes none of the labels has equal probabilities, with a warning.
        """
        return self._probabilities(self._rows(X, reset=False))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_set(self, X: Any) -> NDArray[np.bool_]:
        """The sets of labels, as a boolean array (rows, classes); columns as in `classes_`. A set has at least one label.

        The set contains the right label of a new row with at least the probability `coverage` if new rows are
        exchangeable with those of `fit` (split conformal prediction with the score 1 - probability). If `fit` had too
        few rows to calibrate, it has the most probable labels that together reach the coverage, with a warning.
        """
        probabilities = self.predict_proba(X)
        descending = np.argsort(-probabilities, axis=1, kind="stable")
        if self.threshold_ is None:
            warnings.warn("too few rows calibrated these sets: they are the model's own", stacklevel=2)
            ordered = np.take_along_axis(probabilities, descending, axis=1)
            before = np.cumsum(ordered, axis=1) - ordered
            members = np.zeros(probabilities.shape, dtype=bool)
            np.put_along_axis(members, descending, before < self.coverage - EPSILON, axis=1)
        else:
            members = probabilities >= 1 - self.threshold_ - EPSILON
        np.put_along_axis(members, descending[:, :1], True, axis=1)
        return members

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # How good predictions are depends on the model.
        tags.classifier_tags.poor_score = True
        return tags

    def _probabilities(self, texts: list[str]) -> NDArray[np.float64]:
        question = Choice(self.question, self.options_)
        states = [self._prompt(text) for text in texts]
        answers = self._client().decisions(
            states, [question], progress=self.verbose, read=self.read, orders=self.orders
        )
        names = list(self.options_)
        probabilities = np.full((len(texts), len(names)), 1 / len(names))
        refused = 0
        for row, (answer,) in zip(probabilities, answers):
            if isinstance(answer, ChoiceAnswer):
                row[:] = [answer.probabilities[name] for name in names]
            else:
                refused += 1
        if refused:
            warnings.warn(f"{refused} of {len(texts)} rows: the model writes none of the labels", stacklevel=3)
        return probabilities

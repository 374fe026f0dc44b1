"""Typed questions about a text, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .distribution import Distribution, Mass
from .errors import UnexpectedResponse

# An option of a choice. `"true"` and `True` are different options.
Value = str | bool


@dataclass(frozen=True)
class Predicate:
    """Whether a statement is true."""

    instructions: str

    def body(self) -> dict[str, Any]:
        return {"type": "predicate", "instructions": self.instructions}


@dataclass(frozen=True)
class Choice:
    """Which of 2 to 255 options is right."""

    instructions: str
    options: Sequence[Value] | Mapping[Value, str | None] | Mapping[str, str | None]

    def body(self) -> dict[str, Any]:
        choices = [_described("value", value, about) for value, about in _pairs(self.options)]
        return {"type": "choice", "instructions": self.instructions, "choices": choices}


@dataclass(frozen=True)
class Score:
    """Which of 2 to 10 levels is right; the lowest one is first."""

    instructions: str
    levels: Sequence[str] | Mapping[str, str | None]

    def body(self) -> dict[str, Any]:
        levels = [_described("label", label, about) for label, about in _pairs(self.levels)]
        return {"type": "score", "instructions": self.instructions, "levels": levels}


@dataclass(frozen=True)
class Number:
    """Which number is right. With `minimum`, `maximum` and `step`, only the values of this grid count."""

    instructions: str
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    unit: str | None = None
    objective: str | Mapping[str, float] = "mean"

    def body(self) -> dict[str, Any]:
        fields = {"minimum": self.minimum, "maximum": self.maximum, "step": self.step, "unit": self.unit}
        given = {name: value for name, value in fields.items() if value is not None}
        return {"type": "number", "instructions": self.instructions, "objective": self.objective, **given}


Question = Predicate | Choice | Score | Number


@dataclass(frozen=True)
class OptionSet:
    """Options that contain the right one with the probability `coverage`.

    It is measured if `method` is "conformal", and the model's own opinion if it is "probabilities".
    """

    values: tuple[Value, ...]
    coverage: float
    method: str


@dataclass(frozen=True)
class Interval:
    """An interval that contains the right number or level with the probability `coverage`.

    It is measured if `method` is "conformal", and the model's own opinion if it is "quantiles".
    """

    low: float
    high: float
    coverage: float
    method: str


@dataclass(frozen=True)
class _Answered:
    """The closed mass is the probability of the allowed answers; all other probabilities are shares of it.

    `raw` is the answer of the server, with rigorous bounds in `x_bounds`.
    """

    mass: Mass
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class PredicateAnswer(_Answered):
    probability: float
    set: OptionSet | None


@dataclass(frozen=True)
class ChoiceAnswer(_Answered):
    """`choice` is the most probable option, and `confidence` 0 for equal probabilities and 1 for certainty."""

    choice: Value
    probabilities: Mapping[Value, float]
    confidence: float
    set: OptionSet | None


@dataclass(frozen=True)
class ScoreAnswer(_Answered):
    """`score` is the expected index of the level, from 0. `probabilities` has one entry per level, in their order."""

    score: float
    probabilities: tuple[float, ...]
    confidence: float
    interval: Interval | None


@dataclass(frozen=True)
class NumberAnswer(_Answered):
    """`number` is the estimate of the objective; None if the distribution has none."""

    number: float | None
    distribution: Distribution
    interval: Interval | None


@dataclass(frozen=True)
class Refusal(_Answered):
    """The model writes none of the allowed answers."""


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer | NumberAnswer | Refusal


def read_answer(answer: Mapping[str, Any]) -> Answer:
    """Reads an answer of `/v1/decisions`."""
    mass = Mass.from_response(answer["x_mass"])
    match answer["type"]:
        case "predicate":
            return PredicateAnswer(mass, answer, answer["probability"], _set(answer))
        case "choice":
            probabilities = {entry["value"]: entry["probability"] for entry in answer["probabilities"]}
            return ChoiceAnswer(mass, answer, answer["choice"], probabilities, answer["confidence"], _set(answer))
        case "score":
            levels = tuple(entry["probability"] for entry in answer["probabilities"])
            return ScoreAnswer(mass, answer, answer["score"], levels, answer["confidence"], _interval(answer))
        case "number":
            found = Distribution.from_response(answer["distribution"])
            return NumberAnswer(mass, answer, answer["number"], found, _interval(answer))
        case "refusal":
            return Refusal(mass, answer)
        case kind:
            raise UnexpectedResponse(f"an answer has the unknown type {kind!r}")


def _set(answer: Mapping[str, Any]) -> OptionSet | None:
    found = answer.get("x_set")
    return None if found is None else OptionSet(tuple(found["values"]), found["coverage"], found["method"])


def _interval(answer: Mapping[str, Any]) -> Interval | None:
    found = answer.get("x_interval")
    return None if found is None else Interval(found["low"], found["high"], found["coverage"], found["method"])


def _pairs(options: Sequence[Any] | Mapping[Any, str | None]) -> list[tuple[Any, str | None]]:
    return list(options.items()) if isinstance(options, Mapping) else [(option, None) for option in options]


def _described(key: str, value: Value, description: str | None) -> dict[str, Any]:
    return {key: value} if description is None else {key: value, "description": description}

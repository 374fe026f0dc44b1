"""Results of `chat` and `score`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .distribution import Distribution

# A loss after its reduction: one number, or one for each token. None is infinite, or a loss that the model cannot have.
Loss = float | None | tuple[float | None, ...]


@dataclass(frozen=True)
class ChatAnswer:
    """The first choice of a chat. `number` is its distribution if the request has `number`, and `raw` the response."""

    text: str
    finish_reason: str | None
    number: Distribution | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_response(cls, response: Mapping[str, Any]) -> ChatAnswer:
        choice = response["choices"][0]
        number = choice.get("number")
        return cls(
            text=choice["message"]["content"] or "",
            finish_reason=choice.get("finish_reason"),
            number=None if number is None else Distribution.from_response(number, response.get("system_fingerprint")),
            raw=response,
        )

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class TargetScore:
    """How probable a target is. The tuples have one entry for each of its tokens.

    `number_values` are the expected values of the number tokens, and `number_mass` the probabilities of all number
    tokens; an entry is None if no number token is possible. `losses` has the losses by name, and `total` is `ce` plus
    `lambda` times the first Number Token Loss.
    """

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    number_values: tuple[float | None, ...]
    number_mass: tuple[float | None, ...]
    losses: Mapping[str, Loss]
    total: Loss
    perplexity: float | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_response(cls, item: Mapping[str, Any]) -> TargetScore:
        return cls(
            tokens=tuple(item["tokens"]),
            token_logprobs=tuple(item["token_logprobs"]),
            number_values=tuple(item["number_values"]),
            number_mass=tuple(item["number_mass"]),
            losses={name: _loss(loss) for name, loss in item["losses"].items()},
            total=_loss(item["total"]),
            perplexity=item["perplexity"],
            raw=item,
        )


@dataclass(frozen=True)
class Candidate:
    """A candidate: its log-probability after the prompt, and its share among the candidates."""

    text: str
    logprob: float
    probability: float


@dataclass(frozen=True)
class CandidateScores:
    """The candidates of an item in their order. `losses` are `raft` and `dist2` if the item has a `value`."""

    candidates: tuple[Candidate, ...]
    losses: Mapping[str, float | None]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_response(cls, item: Mapping[str, Any]) -> CandidateScores:
        found = [Candidate(one["text"], one["logprob"], one["probability"]) for one in item["candidates"]]
        return cls(candidates=tuple(found), losses=dict(item.get("losses") or {}), raw=item)


def _loss(loss: Any) -> Loss:
    return tuple(loss) if isinstance(loss, list) else loss

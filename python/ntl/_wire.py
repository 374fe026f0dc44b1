"""Requests, and what is read from responses. No I/O: both clients send the same calls."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

import httpx

from .decisions import Answer, Question, read_answer
from .distribution import Distribution
from .errors import NtlError, RequestRejected, UnexpectedResponse, Unreachable
from .judging import judge_prompt
from .results import CandidateScores, ChatAnswer, TargetScore

A = TypeVar("A")
# A text that the number follows, or the messages of a conversation that it answers.
Prompt = str | Sequence[Mapping[str, Any]]
# The server returns at most this many values of a distribution.
SUPPORT_MAX = 1000
# Maxima of one request to `v1/score`. The server's are 1024 and 16384; smaller requests share the engine better.
SCORED_MAX = 256
CANDIDATES_MAX = 4096
# The server's maximum of texts in one request to `v1/embeddings` is 1024; smaller requests share the engine better.
EMBEDDED_MAX = 64
# A text, or the ids of its tokens.
Embedded = str | Sequence[int]
# The numbers of a text's vector.
Vector = tuple[float, ...]
# Statuses after which the same request may succeed: the queue is full, or the server is starting or draining.
RETRIED = frozenset({429, 503})
WAIT_MAX = 30.0


@dataclass(frozen=True)
class Call(Generic[A]):
    """A request, and the function that reads its response."""

    method: str
    path: str
    body: Mapping[str, Any] | None
    read: Callable[[Mapping[str, Any]], A]


@dataclass(frozen=True)
class Requests:
    """Builds the calls for one model, or for the only model of a server."""

    model: str | None

    def number(self, prompt: Prompt, options: Mapping[str, Any]) -> Call[Distribution]:
        number = {"support": SUPPORT_MAX, **options}
        if isinstance(prompt, str):
            return self._post("v1/completions", {"prompt": prompt, "number": number}, _read_number)
        messages = [dict(message) for message in prompt]
        return self._post("v1/chat/completions", {"messages": messages, "number": number}, _read_number)

    def judge(
        self,
        input: str,
        answer: str,
        *,
        reference: str | None,
        rubric: str | None,
        scale: Sequence[float],
        chat: bool,
        options: Mapping[str, Any],
    ) -> Call[Distribution]:
        prompt = judge_prompt(input, answer, reference, rubric, scale)
        shown: Prompt = [{"role": "user", "content": prompt}] if chat else prompt
        return self.number(shown, {"scale": list(scale), **options})

    def chat(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Call[ChatAnswer]:
        body = {"messages": [dict(message) for message in messages], **options}
        return self._post("v1/chat/completions", body, _read_chat)

    def decide(
        self,
        input: str | Sequence[Mapping[str, Any]],
        questions: Sequence[Question] | Mapping[str, Question],
        options: Mapping[str, Any],
    ) -> Call[list[Answer]]:
        if isinstance(questions, Mapping):
            bodies = [{"name": name, **question.body()} for name, question in questions.items()]
        else:
            bodies = [question.body() for question in questions]
        own = {f"x_{name}": value for name, value in options.items() if value is not None}
        shown = input if isinstance(input, str) else [dict(item) for item in input]
        return self._post("v1/decisions", {"input": shown, "questions": bodies, **own}, _reader_of_answers(len(bodies)))

    def score(
        self, items: Iterable[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[Call[list[TargetScore | CandidateScores]]]:
        """One call for each part of the items that fits into a request."""
        calls = []
        for part in _parts(items):
            calls.append(self._post("v1/score", {"items": part, **options}, _reader_of_scores(len(part))))
        return calls

    def embed(self, texts: Sequence[Embedded], options: Mapping[str, Any]) -> list[Call[list[Vector]]]:
        """One call for each `EMBEDDED_MAX` texts."""
        calls = []
        for start in range(0, len(texts), EMBEDDED_MAX):
            part = [text if isinstance(text, str) else list(text) for text in texts[start : start + EMBEDDED_MAX]]
            # A vector has fewer bytes in base64 than as numbers.
            body = {"input": part, "encoding_format": "base64", **options}
            calls.append(self._post("v1/embeddings", body, _reader_of_vectors(len(part))))
        return calls

    def models(self) -> Call[list[Mapping[str, Any]]]:
        return Call("GET", "v1/models", None, _read_models)

    def _post(self, path: str, body: Mapping[str, Any], read: Callable[[Mapping[str, Any]], A]) -> Call[A]:
        model = {} if self.model is None else {"model": self.model}
        return Call("POST", path, {**model, **body}, read)


class Delivery:
    """The attempts to get one response: which failures are repeated, and after how many seconds."""

    def __init__(self, attempts: int) -> None:
        self.failures = 0
        self.attempts = attempts
        # The time before the next attempt.
        self.seconds = 0.0

    def body(self, response: httpx.Response) -> Mapping[str, Any] | None:
        """Returns the JSON object of a successful response, or None if the request has to be sent again."""
        try:
            return _json_object(response)
        except RequestRejected as error:
            self._failed(error, error.status in RETRIED, _seconds(response))
            return None

    def failed(self, error: httpx.RequestError) -> None:
        """Returns if the request has to be sent again."""
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            # The server may still be computing the response.
            raise Unreachable(f"{error.request.url}: no response within the time-out") from error
        is_repeated = isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout))
        unreachable = Unreachable(f"{error.request.url}: {error}")
        unreachable.__cause__ = error
        self._failed(unreachable, is_repeated, None)

    def _failed(self, error: NtlError, is_repeated: bool, seconds: float | None) -> None:
        self.failures += 1
        if not is_repeated or self.failures >= self.attempts:
            raise error
        self.seconds = min(0.5 * 2 ** (self.failures - 1) if seconds is None else max(seconds, 0.0), WAIT_MAX)


def listed(texts: Iterable[A]) -> list[A]:
    """The texts as a list. A single text would be a list of characters."""
    if isinstance(texts, str):
        raise TypeError("expected a list of texts, not a text")
    return list(texts)


def _seconds(response: httpx.Response) -> float | None:
    """The seconds of `Retry-After`, which is a number or a date."""
    header = response.headers.get("Retry-After", "")
    try:
        return float(header)
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
        now = parsedate_to_datetime(response.headers["Date"])
        return (date - now).total_seconds()
    except (KeyError, TypeError, ValueError):
        return None


def _json_object(response: httpx.Response) -> Mapping[str, Any]:
    try:
        body = json.loads(response.content)
    except ValueError:
        body = None
    if response.status_code >= 400:
        error = body.get("error") if isinstance(body, dict) else None
        if isinstance(error, dict):
            raise RequestRejected(response.status_code, str(error.get("message")), error.get("param"), error.get("code"))
        text = response.content[:200].decode(errors="replace").strip()
        raise RequestRejected(response.status_code, text or "the server returned an error without a message")
    if not isinstance(body, dict):
        raise UnexpectedResponse("the response is not a JSON object")
    return body


def _read_number(response: Mapping[str, Any]) -> Distribution:
    try:
        return Distribution.from_response(response["choices"][0]["number"], response.get("system_fingerprint"))
    except (KeyError, IndexError, TypeError) as error:
        raise UnexpectedResponse("the response has no choices[0].number; is the server an ntl-server?") from error


def _read_chat(response: Mapping[str, Any]) -> ChatAnswer:
    try:
        return ChatAnswer.from_response(response)
    except (KeyError, IndexError, TypeError) as error:
        raise UnexpectedResponse("the response has no choices[0].message") from error


def _read_models(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _list(response, "data")


def _reader_of_answers(count: int) -> Callable[[Mapping[str, Any]], list[Answer]]:
    def read(response: Mapping[str, Any]) -> list[Answer]:
        answers = _list(response, "answers", count)
        try:
            return [read_answer(answer) for answer in answers]
        except (KeyError, TypeError) as error:
            raise UnexpectedResponse(f"an answer lacks {error}; is the server an ntl-server?") from error

    return read


def _reader_of_scores(count: int) -> Callable[[Mapping[str, Any]], list[TargetScore | CandidateScores]]:
    def read(response: Mapping[str, Any]) -> list[TargetScore | CandidateScores]:
        scores: list[TargetScore | CandidateScores] = []
        try:
            for item in _list(response, "data", count):
                kind = CandidateScores if "candidates" in item else TargetScore
                scores.append(kind.from_response(item))
        except (KeyError, TypeError) as error:
            raise UnexpectedResponse(f"a score lacks {error}; is the server an ntl-server?") from error
        return scores

    return read


def _reader_of_vectors(count: int) -> Callable[[Mapping[str, Any]], list[Vector]]:
    def read(response: Mapping[str, Any]) -> list[Vector]:
        items = _list(response, "data", count)
        try:
            return [_vector(item["embedding"]) for item in items]
        except (KeyError, TypeError, ValueError, struct.error) as error:
            raise UnexpectedResponse("the response has an item without a vector") from error

    return read


def _vector(embedding: str | list[float]) -> Vector:
    if isinstance(embedding, str):
        return unpacked(base64.b64decode(embedding, validate=True))
    return tuple(float(number) for number in embedding)


def unpacked(vector: bytes) -> Vector:
    """The numbers of little-endian 32-bit floats."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _list(response: Mapping[str, Any], name: str, count: int | None = None) -> list[Any]:
    found = response.get(name)
    if not isinstance(found, list) or count not in (None, len(found)):
        raise UnexpectedResponse(f"the response has no list `{name}`" + ("" if count is None else f" of {count}"))
    return found


def _parts(items: Iterable[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    parts: list[list[dict[str, Any]]] = []
    candidates = 0
    for item in items:
        own = len(item.get("candidates") or ())
        if not parts or len(parts[-1]) == SCORED_MAX or candidates + own > CANDIDATES_MAX:
            parts.append([])
            candidates = 0
        parts[-1].append(dict(item))
        candidates += own
    return parts

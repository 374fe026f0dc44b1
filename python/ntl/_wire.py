"""Bodies of requests, and what is read from responses. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .distribution import Distribution
from .errors import RequestRejected, UnexpectedResponse

COMPLETIONS = "v1/completions"
CHAT = "v1/chat/completions"
SCORE = "v1/score"
MODELS = "v1/models"
# The server returns at most this many values of a distribution.
SUPPORT_MAX = 1000
# Statuses after which the same request may succeed: the queue is full, or the server is starting or draining.
RETRIED = frozenset({429, 503})


def number_body(prompt: str | Sequence[Mapping[str, Any]], model: str | None, options: Mapping[str, Any]) -> Any:
    """The path and the body of a request for the number that follows a prompt, or that answers a conversation."""
    number = {"support": SUPPORT_MAX, **options}
    body: dict[str, Any] = {"number": number}
    if model is not None:
        body["model"] = model
    if isinstance(prompt, str):
        return COMPLETIONS, {"prompt": prompt, **body}
    return CHAT, {"messages": [dict(message) for message in prompt], **body}


def read_number(response: Mapping[str, Any]) -> Distribution:
    """The distribution of the first choice."""
    try:
        number = response["choices"][0]["number"]
    except (KeyError, IndexError, TypeError) as error:
        raise UnexpectedResponse("the response has no choices[0].number; is the server an ntl-server?") from error
    return Distribution.from_response(number)


def read_text(response: Mapping[str, Any]) -> str:
    """The text of the first choice of a chat."""
    try:
        return str(response["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError) as error:
        raise UnexpectedResponse("the response has no choices[0].message") from error


def read_body(status: int, content: bytes) -> Mapping[str, Any]:
    """The JSON object of a successful response, or the error of any other one."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if status >= 400:
        error = body.get("error") if isinstance(body, dict) else None
        if isinstance(error, dict):
            raise RequestRejected(status, str(error.get("message")), error.get("param"), error.get("code"))
        text = content[:200].decode(errors="replace").strip()
        raise RequestRejected(status, text or "the server returned an error without a message")
    if not isinstance(body, dict):
        raise UnexpectedResponse("the response is not a JSON object")
    return body


def retry_after(header: str | None, attempt: int) -> float:
    """Seconds to wait before the next attempt: the server's, or 0.5, 1, 2, ... at most 30."""
    try:
        seconds = float(header) if header is not None else 0.5 * 2**attempt
    except ValueError:
        seconds = 0.5 * 2**attempt
    return min(max(seconds, 0.0), 30.0)

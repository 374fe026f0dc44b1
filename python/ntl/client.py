"""Clients of an ntl-server, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from . import _wire
from .distribution import Distribution
from .errors import RequestRejected, Unreachable

if TYPE_CHECKING:
    from typing_extensions import Self

# A text that the number follows, or the messages of a conversation that it answers.
Prompt = str | Sequence[Mapping[str, Any]]

DEFAULT_URL = "http://127.0.0.1:8000"
# Concurrent requests of `numbers`. The server batches them.
CONCURRENCY = 32


class _Access:
    """What both clients share: where the server is, and which of its models is used."""

    def __init__(
        self, base_url: str, model: str | None, api_key: str | None, timeout: float, attempts: int, **options: Any
    ) -> None:
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {attempts}")
        self.model = model
        self.attempts = attempts
        root = base_url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # The time-out is the longest time without a byte. A long answer may take longer in all.
        limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
        self.settings: dict[str, Any] = {
            "base_url": f"{root}/", "headers": headers, "timeout": timeout, "limits": limits, **options,
        }

    def chat_body(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": [dict(message) for message in messages], **options}
        if self.model is not None:
            body["model"] = self.model
        return body

    def score_body(self, items: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"items": [dict(item) for item in items], **options}
        if self.model is not None:
            body["model"] = self.model
        return body


class Client:
    """Requests numbers, texts and scores from an ntl-server.

    `model` may be left out if the server has only one. Requests that the server rejects because its queue is full or
    because it is starting (429, 503) are repeated up to `attempts` times, after the time that the server states.
    Other keyword arguments go to `httpx.Client`.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        attempts: int = 5,
        **options: Any,
    ) -> None:
        self._access = _Access(base_url, model, api_key, timeout, attempts, **options)
        self._http = httpx.Client(**self._access.settings)

    @property
    def model(self) -> str | None:
        return self._access.model

    def number(self, prompt: Prompt, **options: Any) -> Distribution:
        """The distribution of the number after `prompt`. `options` are fields of the request's `number` object, such
        as `range`, `scale`, `after` or `objective`."""
        path, body = _wire.number_body(prompt, self.model, options)
        return _wire.read_number(self._post(path, body))

    def numbers(
        self, prompts: Iterable[Prompt], *, progress: bool = False, concurrency: int = CONCURRENCY, **options: Any
    ) -> list[Distribution]:
        """The distribution for each prompt, in their order. Requests run concurrently. The first error ends the call."""
        prompts = list(prompts)
        with ThreadPoolExecutor(max_workers=max(1, min(concurrency, CONCURRENCY, len(prompts) or 1))) as pool:
            tasks = [pool.submit(self.number, prompt, **options) for prompt in prompts]
            try:
                return [task.result() for task in _shown(tasks, progress)]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The model's answer to a conversation. `options` are fields of the request, such as `max_tokens`."""
        return _wire.read_text(self._post(_wire.CHAT, self._access.chat_body(messages, options)))

    def judge(self, messages: Sequence[Mapping[str, Any]], scale: tuple[float, float], **options: Any) -> Distribution:
        """The distribution of the score that the model gives on a scale of integers."""
        return self.number(messages, scale=list(scale), **options)

    def score(self, items: Iterable[Mapping[str, Any]], **options: Any) -> list[Mapping[str, Any]]:
        """Log-probabilities and losses of given targets (`{"prompt", "target"}`), or probabilities of candidates
        (`{"prompt", "candidates"}`)."""
        return list(self._post(_wire.SCORE, self._access.score_body(items, options))["data"])

    def models(self) -> list[Mapping[str, Any]]:
        return list(self._request("GET", _wire.MODELS)["data"])

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        for attempt in range(self._access.attempts):
            is_last = attempt + 1 == self._access.attempts
            try:
                response = self._http.request(method, path, json=body)
                return _wire.read_body(response.status_code, response.content)
            except httpx.TimeoutException as error:
                # The server is still computing the answer, so the request is not repeated.
                raise Unreachable(f"no response within the time-out: {error}") from error
            except httpx.TransportError as error:
                if is_last:
                    raise Unreachable(f"{self._http.base_url}: {error}") from error
                time.sleep(_wire.retry_after(None, attempt))
            except RequestRejected as error:
                if is_last or error.status not in _wire.RETRIED:
                    raise
                time.sleep(_wire.retry_after(response.headers.get("Retry-After"), attempt))
        raise AssertionError("the last attempt returns or raises")

    def __getstate__(self) -> dict[str, Any]:
        # scikit-learn copies the parameters of estimators, and processes receive them pickled: connections stay.
        return {"_access": self._access}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._access = state["_access"]
        self._http = httpx.Client(**self._access.settings)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class AsyncClient:
    """The same as `Client`, for asyncio."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        attempts: int = 5,
        **options: Any,
    ) -> None:
        self._access = _Access(base_url, model, api_key, timeout, attempts, **options)
        self._http = httpx.AsyncClient(**self._access.settings)

    @property
    def model(self) -> str | None:
        return self._access.model

    async def number(self, prompt: Prompt, **options: Any) -> Distribution:
        path, body = _wire.number_body(prompt, self.model, options)
        return _wire.read_number(await self._post(path, body))

    async def numbers(
        self, prompts: Iterable[Prompt], *, progress: bool = False, concurrency: int = CONCURRENCY, **options: Any
    ) -> list[Distribution]:
        waiting = list(enumerate(prompts))
        found: dict[int, Distribution] = {}
        bar = _Bar(len(waiting), progress)
        waiting.reverse()

        async def work() -> None:
            while waiting:
                index, prompt = waiting.pop()
                found[index] = await self.number(prompt, **options)
                bar.step()

        workers = [asyncio.ensure_future(work()) for _ in range(max(1, min(concurrency, len(waiting) or 1)))]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise
        finally:
            bar.end()
        return [found[index] for index in range(len(found))]

    async def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return _wire.read_text(await self._post(_wire.CHAT, self._access.chat_body(messages, options)))

    async def judge(
        self, messages: Sequence[Mapping[str, Any]], scale: tuple[float, float], **options: Any
    ) -> Distribution:
        return await self.number(messages, scale=list(scale), **options)

    async def score(self, items: Iterable[Mapping[str, Any]], **options: Any) -> list[Mapping[str, Any]]:
        return list((await self._post(_wire.SCORE, self._access.score_body(items, options)))["data"])

    async def models(self) -> list[Mapping[str, Any]]:
        return list((await self._request("GET", _wire.MODELS))["data"])

    async def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._request("POST", path, body)

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        for attempt in range(self._access.attempts):
            is_last = attempt + 1 == self._access.attempts
            try:
                response = await self._http.request(method, path, json=body)
                return _wire.read_body(response.status_code, response.content)
            except httpx.TimeoutException as error:
                raise Unreachable(f"no response within the time-out: {error}") from error
            except httpx.TransportError as error:
                if is_last:
                    raise Unreachable(f"{self._http.base_url}: {error}") from error
                await asyncio.sleep(_wire.retry_after(None, attempt))
            except RequestRejected as error:
                if is_last or error.status not in _wire.RETRIED:
                    raise
                await asyncio.sleep(_wire.retry_after(response.headers.get("Retry-After"), attempt))
        raise AssertionError("the last attempt returns or raises")

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Bar:
    """A line with the number of finished requests, on standard error."""

    def __init__(self, total: int, is_shown: bool) -> None:
        self.total, self.done, self.is_shown = total, 0, is_shown

    def step(self) -> None:
        self.done += 1
        if self.is_shown:
            print(f"\r{self.done}/{self.total}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.is_shown and self.total:
            print(file=sys.stderr)


def _shown(tasks: list[Any], progress: bool) -> Iterable[Any]:
    """The tasks in their order; the line counts those that are done up to each."""
    bar = _Bar(len(tasks), progress)
    try:
        for task in tasks:
            yield task
            bar.step()
    finally:
        bar.end()

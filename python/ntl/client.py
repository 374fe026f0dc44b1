"""Clients of an ntl-server, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import httpx

from ._progress import Bar
from ._wire import Call, Delivery, Embedded, Prompt, Requests, Vector, listed
from .decisions import Answer, Question
from .distribution import Distribution
from .results import CandidateScores, ChatAnswer, TargetScore

if TYPE_CHECKING:
    from typing_extensions import Self

A = TypeVar("A")
DEFAULT_URL = "http://127.0.0.1:8000"
Questions = Sequence[Question] | Mapping[str, Question]


class _Access:
    """The settings of a client.

    Parameters
    ----------
    base_url: the server's address, with or without `/v1`.
    model: the name of the model; not needed if the server has only one.
    api_key: the key that the server requires, if it requires one.
    timeout: the longest time without a byte of the response, in seconds.
    attempts: how often a request is sent if the queue is full, if the server is starting or draining (429, 503), or if
        the connection breaks. The waits are the server's `Retry-After`, and otherwise 0.5, 1, 2, ... seconds.
    concurrency: how many requests `numbers`, `decisions`, `score` and `embed` send concurrently. The server batches them.
    options: further arguments of `httpx.Client`, such as `verify` or `headers`.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        attempts: int = 5,
        concurrency: int = 32,
        **options: Any,
    ) -> None:
        for name, count in (("attempts", attempts), ("concurrency", concurrency)):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, not {count}")
        self._requests = Requests(model)
        self._attempts = attempts
        self._concurrency = concurrency
        root = base_url.rstrip("/").removesuffix("/v1")
        # The number of requests is limited by `concurrency`; a request must not wait for a connection.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
        self._settings: dict[str, Any] = {"base_url": f"{root}/", "timeout": timeout, "limits": limits, **options}
        if api_key is not None:
            self._settings["headers"] = {"Authorization": f"Bearer {api_key}", **options.get("headers", {})}
        self._connect()

    def _connect(self) -> None:
        raise NotImplementedError

    @property
    def model(self) -> str | None:
        """The name of the model; None for the only one of the server."""
        return self._requests.model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings['base_url']!r}, model={self.model!r})"


class Client(_Access):
    """Requests numbers, decisions, texts and scores from an ntl-server. `AsyncClient` does the same for asyncio."""

    _http: httpx.Client

    def _connect(self) -> None:
        self._http = httpx.Client(**self._settings)

    def number(self, prompt: Prompt, **options: Any) -> Distribution:
        """The distribution of the number after a text, or of the answer to a conversation.

        `options` are fields of the request's `number` object, such as `range`, `scale`, `after` or `objective`.
        """
        return self._send(self._requests.number(prompt, options))

    def numbers(self, prompts: Iterable[Prompt], *, progress: bool = False, **options: Any) -> list[Distribution]:
        """The distribution for each prompt, in their order. The first error ends the call."""
        return self._all([self._requests.number(prompt, options) for prompt in listed(prompts)], progress)

    @overload
    def decide(
        self, input: str | Sequence[Mapping[str, Any]], questions: Mapping[str, Question], **options: Any
    ) -> dict[str, Answer]: ...

    @overload
    def decide(
        self, input: str | Sequence[Mapping[str, Any]], questions: Sequence[Question], **options: Any
    ) -> list[Answer]: ...

    def decide(
        self, input: str | Sequence[Mapping[str, Any]], questions: Questions, **options: Any
    ) -> dict[str, Answer] | list[Answer]:
        """The answers to typed questions about a text or a conversation, with the probability of every allowed answer.

        `questions` is a list, or a dictionary by name; the answers have the same form. `options` are `read` ("labels" or
        "texts"), `orders`, `coverage` and `tolerance`, the fields of the request that begin with `x_`.
        """
        answers = self._send(self._requests.decide(input, questions, options))
        return dict(zip(questions, answers)) if isinstance(questions, Mapping) else answers

    def decisions(
        self,
        inputs: Iterable[str | Sequence[Mapping[str, Any]]],
        questions: Sequence[Question],
        *,
        progress: bool = False,
        **options: Any,
    ) -> list[list[Answer]]:
        """The answers of `decide` for each input, in their order. The first error ends the call."""
        return self._all([self._requests.decide(input, questions, options) for input in inputs], progress)

    def judge(
        self,
        input: str,
        answer: str,
        *,
        reference: str | None = None,
        rubric: str | None = None,
        scale: Sequence[float] = (1, 10),
        chat: bool = True,
        **options: Any,
    ) -> Distribution:
        """The distribution of the score that the model gives an answer to the question `input`.

        `rubric` may contain `{input}`, `{answer}`, `{reference}`, `{low}` and `{high}`; the default rubric comes from
        `ntl-eval judge`. `scale` is (low, high) or (low, high, step). `chat` is false for a model without a chat
        template. `options` are fields of the request's `number` object.
        """
        return self._send(
            self._requests.judge(
                input, answer, reference=reference, rubric=rubric, scale=scale, chat=chat, options=options
            )
        )

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatAnswer:
        """The model's answer to a conversation. `options` are fields of the request, such as `max_tokens`."""
        return self._send(self._requests.chat(messages, options))

    def score(
        self, items: Iterable[Mapping[str, Any]], *, progress: bool = False, **options: Any
    ) -> list[TargetScore | CandidateScores]:
        """Log-probabilities and losses of given targets (`{"prompt", "target"}`), or probabilities of candidates
        (`{"prompt", "candidates"}`). `options` are fields of the request, such as `losses`."""
        parts = self._all(self._requests.score(items, options), progress)
        return [score for part in parts for score in part]

    def embed(self, texts: Iterable[Embedded], *, progress: bool = False, **options: Any) -> list[Vector]:
        """A vector for each text, or list of token ids, in their order: hidden states of a natively served model.

        `options` are fields of the request: `pooling` ("mean" or "last"), `normalize`, `add_special_tokens`,
        `truncate_prompt_tokens` and `truncation_side`. `numpy.array` makes a matrix of the result.
        """
        parts = self._all(self._requests.embed(listed(texts), options), progress)
        return [vector for part in parts for vector in part]

    def models(self) -> list[Mapping[str, Any]]:
        """The served models with their properties."""
        return self._send(self._requests.models())

    def _send(self, call: Call[A]) -> A:
        delivery = Delivery(self._attempts)
        while True:
            body = None
            try:
                body = delivery.body(self._http.request(call.method, call.path, json=call.body))
            except httpx.RequestError as error:
                delivery.failed(error)
            if body is not None:
                return call.read(body)
            time.sleep(delivery.seconds)

    def _all(self, calls: Sequence[Call[A]], progress: bool) -> list[A]:
        found = dict(self._completed(calls, progress))
        return [found[index] for index in range(len(calls))]

    def _completed(self, calls: Sequence[Call[A]], progress: bool) -> Iterator[tuple[int, A]]:
        """The index and the answer of each call, in the order in which they complete."""
        bar = Bar(len(calls), progress)
        pool = ThreadPoolExecutor(max_workers=max(1, min(self._concurrency, len(calls))))
        try:
            tasks: dict[Future[A], int] = {}
            for index, call in enumerate(calls):
                tasks[pool.submit(self._send, call)] = index
            for task in as_completed(tasks):
                answer = task.result()
                bar.step()
                yield tasks[task], answer
        finally:
            # After an error, the requests that are under way are not awaited.
            pool.shutdown(wait=False, cancel_futures=True)
            bar.end()

    def __deepcopy__(self, memo: dict[int, Any]) -> Client:
        # scikit-learn copies the parameters of estimators. Copies share the connections, as threads do.
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Other processes open their own connections.
        return {name: value for name, value in self.__dict__.items() if name != "_http"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class AsyncClient(_Access):
    """The methods of `Client` as coroutines. At most `concurrency` requests are under way, also of separate calls."""

    def _connect(self) -> None:
        self._places = asyncio.Semaphore(self._concurrency)
        # One httpx client for each request under way: the pool of a client examines all of its connections at each
        # request, which costs more than the request itself if there are many.
        self._idle: list[httpx.AsyncClient] = []
        self._opened: list[httpx.AsyncClient] = []
        # They share it, since it takes milliseconds to read the certificates.
        verify = self._settings.get("verify", True)
        if not isinstance(verify, ssl.SSLContext):
            own = {name: self._settings[name] for name in ("cert", "trust_env") if name in self._settings}
            self._settings["verify"] = httpx.create_ssl_context(verify=verify, **own)

    async def number(self, prompt: Prompt, **options: Any) -> Distribution:
        return await self._send(self._requests.number(prompt, options))

    async def numbers(self, prompts: Iterable[Prompt], *, progress: bool = False, **options: Any) -> list[Distribution]:
        return await self._all([self._requests.number(prompt, options) for prompt in listed(prompts)], progress)

    @overload
    async def decide(
        self, input: str | Sequence[Mapping[str, Any]], questions: Mapping[str, Question], **options: Any
    ) -> dict[str, Answer]: ...

    @overload
    async def decide(
        self, input: str | Sequence[Mapping[str, Any]], questions: Sequence[Question], **options: Any
    ) -> list[Answer]: ...

    async def decide(
        self, input: str | Sequence[Mapping[str, Any]], questions: Questions, **options: Any
    ) -> dict[str, Answer] | list[Answer]:
        answers = await self._send(self._requests.decide(input, questions, options))
        return dict(zip(questions, answers)) if isinstance(questions, Mapping) else answers

    async def decisions(
        self,
        inputs: Iterable[str | Sequence[Mapping[str, Any]]],
        questions: Sequence[Question],
        *,
        progress: bool = False,
        **options: Any,
    ) -> list[list[Answer]]:
        return await self._all([self._requests.decide(input, questions, options) for input in inputs], progress)

    async def judge(
        self,
        input: str,
        answer: str,
        *,
        reference: str | None = None,
        rubric: str | None = None,
        scale: Sequence[float] = (1, 10),
        chat: bool = True,
        **options: Any,
    ) -> Distribution:
        return await self._send(
            self._requests.judge(
                input, answer, reference=reference, rubric=rubric, scale=scale, chat=chat, options=options
            )
        )

    async def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatAnswer:
        return await self._send(self._requests.chat(messages, options))

    async def score(
        self, items: Iterable[Mapping[str, Any]], *, progress: bool = False, **options: Any
    ) -> list[TargetScore | CandidateScores]:
        parts = await self._all(self._requests.score(items, options), progress)
        return [score for part in parts for score in part]

    async def embed(self, texts: Iterable[Embedded], *, progress: bool = False, **options: Any) -> list[Vector]:
        parts = await self._all(self._requests.embed(listed(texts), options), progress)
        return [vector for part in parts for vector in part]

    async def models(self) -> list[Mapping[str, Any]]:
        return await self._send(self._requests.models())

    async def _send(self, call: Call[A]) -> A:
        delivery = Delivery(self._attempts)
        while True:
            body = None
            try:
                body = delivery.body(await self._exchange(call))
            except httpx.RequestError as error:
                delivery.failed(error)
            if body is not None:
                return call.read(body)
            await asyncio.sleep(delivery.seconds)

    async def _exchange(self, call: Call[Any]) -> httpx.Response:
        async with self._places:
            if not self._idle:
                self._opened.append(httpx.AsyncClient(**self._settings))
                self._idle.append(self._opened[-1])
            http = self._idle.pop()
            try:
                return await http.request(call.method, call.path, json=call.body)
            finally:
                self._idle.append(http)

    async def _all(self, calls: Sequence[Call[A]], progress: bool) -> list[A]:
        found: dict[int, A] = {}
        waiting = iter(enumerate(calls))
        bar = Bar(len(calls), progress)

        async def work() -> None:
            for index, call in waiting:
                found[index] = await self._send(call)
                bar.step()

        workers = [asyncio.create_task(work()) for _ in range(min(self._concurrency, len(calls)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            bar.end()
        return [found[index] for index in range(len(calls))]

    async def aclose(self) -> None:
        for http in self._opened:
            await http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

"""Predictions for columns and tables of pandas and polars, with a cache on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import struct
import zlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._text import is_table, texts_of
from ._wire import EMBEDDED_MAX, Call, Vector, unpacked
from .client import Client
from .distribution import Distribution
from .errors import NtlError

if TYPE_CHECKING:
    from typing_extensions import Self

ESTIMATES = ("value", "mean", "median", "mode", "std")


def predict(
    rows: Any,
    client: Client | None = None,
    *,
    template: str | None = None,
    estimates: Sequence[str | float] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = False,
    **options: Any,
) -> Any:
    """The number after each row's text, as a column of the same kind, with the same index.

    Parameters
    ----------
    rows: a list or a column of texts, or a table, of pandas or polars.
    client: the `ntl.Client` of the model; by default, a server on this machine.
    template: the text of one row, with the columns of a table in braces, or `{text}` for a column.
    estimates: with these, the result is a table with a column for each: "value" (the server's estimate), "mean", "median",
        "mode", "std", "closed" (the probability of numbers), or a number q, whose quantile is in the column `qQ`. A
        list of rows becomes a dictionary of lists.
    cache: a file that keeps the responses. A call that was interrupted continues from it. The key of a response is the
        model's fingerprint with its type of weights, and the request, so another model or prompt is requested anew.
    progress: whether a line on standard error counts the requests.
    options: fields of the request's `number` object, such as `range` or `objective`.

    A row without a number has missing values. Equal prompts are requested once.
    """
    for name in estimates or ():
        if isinstance(name, str) and name not in (*ESTIMATES, "closed"):
            raise ValueError(f"estimates has {name!r}; it may have {', '.join(ESTIMATES)}, closed and quantiles")
    client = client if client is not None else Client()
    texts = texts_of(rows, template)
    distinct = list(dict.fromkeys(texts))
    if cache is None:
        distributions = dict(zip(distinct, client.numbers(distinct, progress=progress, **options)))
    else:
        distributions = cached(client, distinct, options, cache, progress)
    found = [distributions[text] for text in texts]
    if estimates is None:
        return _column(rows, [one.value for one in found])
    columns = {}
    for name in estimates:
        label = name if isinstance(name, str) else f"q{name:g}"
        columns[label] = [_estimate(one, name) for one in found]
    return _table(rows, columns)


class Cache:
    """Number objects and vectors of a model's responses in an SQLite file. Each is on disk as soon as it is put."""

    def __init__(self, path: str | os.PathLike[str], model: Mapping[str, Any]) -> None:
        self._fingerprint: str = model["fingerprint"]
        self._identity = [model["fingerprint"], model["dtype"], model["backend"]]
        try:
            self._file = sqlite3.connect(path, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS numbers (key BLOB PRIMARY KEY, number BLOB) WITHOUT ROWID")
            self._file.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        except sqlite3.Error as error:
            raise NtlError(f"{os.fspath(path)} cannot be used as a cache: {error}") from error

    def get(self, call: Call[Distribution]) -> Distribution | None:
        row = self._file.execute("SELECT number FROM numbers WHERE key = ?", (self._key(call),)).fetchone()
        if row is None:
            return None
        return Distribution.from_response(json.loads(zlib.decompress(row[0])), self._fingerprint)

    def put(self, call: Call[Distribution], found: Distribution) -> None:
        if found.fingerprint != self._fingerprint:
            raise NtlError(f"the server's model has changed from {self._fingerprint} to {found.fingerprint}")
        packed = zlib.compress(json.dumps(found.raw).encode())
        self._file.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (self._key(call), packed))

    def vector(self, text: str, options: Mapping[str, Any]) -> Vector | None:
        key = self._key_of("v1/embeddings", {**options, "input": text})
        row = self._file.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        return None if row is None else unpacked(row[0])

    def put_vector(self, text: str, options: Mapping[str, Any], vector: Vector) -> None:
        key = self._key_of("v1/embeddings", {**options, "input": text})
        self._file.execute("INSERT OR REPLACE INTO vectors VALUES (?, ?)", (key, struct.pack(f"<{len(vector)}f", *vector)))

    def _key(self, call: Call[Distribution]) -> bytes:
        return self._key_of(call.path, {name: value for name, value in (call.body or {}).items() if name != "model"})

    def _key_of(self, path: str, body: Mapping[str, Any]) -> bytes:
        return hashlib.sha256(json.dumps([self._identity, path, body], sort_keys=True).encode()).digest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def cached(
    client: Client, texts: list[str], options: Mapping[str, Any], path: str | os.PathLike[str], progress: bool
) -> dict[str, Distribution]:
    """The distribution for each text. Those that the cache does not have are requested once."""
    texts = list(dict.fromkeys(texts))
    calls = {text: client._requests.number(text, options) for text in texts}
    found = {}
    with Cache(path, served(client)) as cache:
        for text, call in calls.items():
            kept = cache.get(call)
            if kept is not None:
                found[text] = kept
        missing = [text for text in texts if text not in found]
        for index, distribution in client._completed([calls[text] for text in missing], progress):
            cache.put(calls[missing[index]], distribution)
            found[missing[index]] = distribution
    return found


def cached_vectors(
    client: Client, texts: list[str], options: Mapping[str, Any], path: str | os.PathLike[str], progress: bool
) -> dict[str, Vector]:
    """The vector of each text. Those that the cache does not have are requested once."""
    found = {}
    missing = []
    with Cache(path, served(client)) as cache:
        for text in dict.fromkeys(texts):
            kept = cache.vector(text, options)
            if kept is None:
                missing.append(text)
            else:
                found[text] = kept
        for index, vectors in client._completed(client._requests.embed(missing, options), progress):
            for text, vector in zip(missing[index * EMBEDDED_MAX :], vectors):
                cache.put_vector(text, options, vector)
                found[text] = vector
    return found


def served(client: Client) -> Mapping[str, Any]:
    """The properties of the client's model."""
    models = client.models()
    named = [model for model in models if client.model in (None, model["id"])]
    if len(named) != 1:
        raise NtlError(f"a cache needs the name of the client's model, one of {', '.join(m['id'] for m in models)}")
    if not named[0].get("fingerprint"):
        raise NtlError(f"a cache needs the model's fingerprint, and {named[0]['id']} has none")
    return named[0]


def _estimate(found: Distribution, name: str | float) -> float | None:
    if name == "closed":
        return found.mass.closed
    if name == "value":
        return found.value
    if not found.values:
        return None
    return float(getattr(found, name)) if isinstance(name, str) else found.quantile(name)


def _column(rows: Any, values: list[float | None]) -> Any:
    match _package(rows):
        case "pandas":
            import pandas

            name = "value" if is_table(rows) else rows.name
            return pandas.Series(values, index=rows.index, name=name, dtype="float64")
        case "polars":
            import polars

            return polars.Series("value" if is_table(rows) else rows.name, values, dtype=polars.Float64)
    return values


def _table(rows: Any, columns: dict[str, list[float | None]]) -> Any:
    match _package(rows):
        case "pandas":
            import pandas

            return pandas.DataFrame(columns, index=rows.index, dtype="float64")
        case "polars":
            import polars

            return polars.DataFrame(columns, schema=dict.fromkeys(columns, polars.Float64))
    return columns


def _package(rows: Any) -> str:
    return type(rows).__module__.partition(".")[0]

"""Reads texts and numbers from a file with a header line. Errors name the file, the line and the column."""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path

DELIMITERS = (",", ";", "\t", "|")
# Names of the columns that an error lists.
NAMES_SHOWN = 12


class TableError(ValueError):
    """The file cannot be used as it is."""


@dataclass(frozen=True)
class Rows:
    texts: list[str]
    numbers: list[float]
    delimiter: str | None
    encoding: str | None


def read_rows(
    path: str | os.PathLike[str],
    text: str,
    target: str,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str = ".",
) -> Rows:
    """Reads the columns `text` and `target`.

    Without `delimiter`, it is the comma, semicolon, tab or bar with which the header line has both columns. Without
    `encoding`, the file is UTF-8, or UTF-16 with a byte order mark.
    """
    name = os.fspath(path)
    if text == target:
        raise TableError(f"the texts and the numbers are in the same column, {text}")
    if decimal not in (".", ","):
        raise TableError(f"decimal must be `.` or `,`, not {decimal!r}")
    data = Path(path).read_bytes()
    encoding = encoding or _encoding(data)
    content = _decoded(data, name, encoding)
    delimiter = delimiter or _delimiter(content, text, target)
    lines = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    texts: list[str] = []
    numbers: list[float] = []
    try:
        header = [column.strip() for column in next(lines, [])]
        at = {column: _position(header, column, name) for column in (text, target)}
        for cells in lines:
            line = f"{name}, line {lines.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise TableError(f"{line}: it has {len(cells)} columns, and the header has {len(header)}")
            texts.append(_text(cells[at[text]], f"{line}, column {text}"))
            numbers.append(_number(cells[at[target]], decimal, f"{line}, column {target}"))
    except csv.Error as error:
        raise TableError(f"{name}, line {lines.line_num}: {error}") from error
    if not texts:
        raise TableError(f"{name} has no rows after its header line")
    return Rows(texts, numbers, delimiter, encoding)


def _encoding(data: bytes) -> str:
    return "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"


def _decoded(data: bytes, name: str, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except LookupError as error:
        raise TableError(f"there is no encoding {encoding!r}") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        shown = encoding.removesuffix("-sig").upper()
        advice = "name its encoding, for example cp1252 for files of older Windows programs"
        raise TableError(f"{name}, line {line}: it is not text in {shown}; {advice}") from error


def _delimiter(content: str, text: str, target: str) -> str:
    """The delimiter with which the header has both columns, or otherwise the most columns."""
    headers = {}
    for delimiter in DELIMITERS:
        header = next(csv.reader(io.StringIO(content, newline=""), delimiter=delimiter), [])
        headers[delimiter] = [column.strip() for column in header]
        if text in headers[delimiter] and target in headers[delimiter]:
            return delimiter
    return max(DELIMITERS, key=lambda delimiter: len(headers[delimiter]))


def _position(header: list[str], column: str, name: str) -> int:
    if header.count(column) > 1:
        raise TableError(f"{name}: its header has the column {column} {header.count(column)} times")
    if column not in header:
        shown = ", ".join(header[:NAMES_SHOWN]) + (", ..." if len(header) > NAMES_SHOWN else "")
        raise TableError(f"{name}: its header has no column {column}; it has {shown or 'no columns'}")
    return header.index(column)


def _text(cell: str, place: str) -> str:
    if not cell.strip():
        raise TableError(f"{place}: it is empty")
    return cell.strip()


def _number(cell: str, decimal: str, place: str) -> float:
    written = cell.strip()
    try:
        if "_" in written or (decimal == "," and "." in written):
            raise ValueError
        number = float(written.replace(decimal, "."))
    except ValueError:
        problem = f"`{cell}` is not a number" if written else "it is empty"
        advice = ""
        if decimal == "." and "," in written:
            advice = "; write numbers without separators of thousands, or say that the decimal sign is a comma"
        raise TableError(f"{place}: {problem}{advice}") from None
    if not math.isfinite(number):
        raise TableError(f"{place}: `{cell}` is not a finite number")
    return number

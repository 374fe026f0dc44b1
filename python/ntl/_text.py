"""Texts of rows: templates, and columns and tables of pandas, polars and numpy. None of them is imported."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")


def filled(template: str, row: Mapping[str, Any]) -> str:
    """The template with its fields replaced once, so that braces in the data stay. `{{` and `}}` are single braces."""

    def field(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        if match[1] not in row:
            raise ValueError(f"the template names {{{match[1]}}}, and a row has only {', '.join(row)}")
        return shown(row[match[1]])

    return FIELD.sub(field, template)


def shown(value: Any) -> str:
    """A cell as text. A missing value (None, NaN, NA) is empty."""
    is_nan = isinstance(value, float) and math.isnan(value)
    is_missing = value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")
    return "" if is_missing else str(value)


def is_table(rows: Any) -> bool:
    return hasattr(rows, "columns")


def texts_of(rows: Any, template: str | None, ending: str = "") -> list[str]:
    """The text of each row of a list, a column or a table.

    A table's row is a line `NAME: VALUE` for each column, or the template with the columns' names in braces. The
    columns of an array are `0`, `1`, and so on. The field of a list or column is `{text}`. `ending` ends the text if
    there is no template.
    """
    if is_table(rows) or getattr(rows, "ndim", 1) == 2:
        if is_table(rows):
            names = [str(name) for name in rows.columns]
            records = zip(*(rows[name].to_list() for name in rows.columns))
        else:
            names = [str(index) for index in range(rows.shape[1])]
            records = rows.tolist()
        template = template or "\n".join(f"{name}: {{{name}}}" for name in names) + ending
        return [filled(template, dict(zip(names, row))) for row in records]
    values = rows.to_list() if hasattr(rows, "to_list") else list(rows)
    return [filled(template or "{text}" + ending, {"text": value}) for value in values]

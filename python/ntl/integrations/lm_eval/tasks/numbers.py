"""Answers that are one number: the last number of the text, extracted like `ntl-eval` in text mode does for plain answers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def process_results(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Returns the metrics of an item. Errors are averaged over items with a number; items without one count as incorrect."""
    truth, value = float(document["answer"]), last_number(results[0])
    if value is None:
        return {"accuracy": 0.0, "unparsed": 1.0}
    error = abs(value - truth)
    right = float(math.isclose(value, truth, rel_tol=1e-9))
    return {"accuracy": right, "unparsed": 0.0, "mae": error, "rmse": error**2}


def root_mean(squares: Sequence[float]) -> float:
    return math.sqrt(sum(squares) / len(squares))

"""Answers that are one number: the last number of the text, extracted like `ntl-eval` in text mode does for plain answers."""

import math
import re

NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def last_number(text):
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def process_results(document, results):
    """Returns the metrics of an item. Errors are averaged over items with a number; items without one count as incorrect."""
    truth, value = float(document["answer"]), last_number(results[0])
    if value is None:
        return {"accuracy": 0.0, "unparsed": 1.0}
    error = abs(value - truth)
    right = float(math.isclose(value, truth, rel_tol=1e-9))
    return {"accuracy": right, "unparsed": 0.0, "mae": error, "rmse": error**2}


def root_mean(squares):
    return math.sqrt(sum(squares) / len(squares))

"""scikit-learn's own checks of both estimators, with rows of numbers as text."""

import json
import re
from collections import Counter

import httpx
import pytest

pytest.importorskip("sklearn")

from sklearn.utils.estimator_checks import parametrize_with_checks

import ntl

MASS = {"closed": 1, "invalid": 0, "open": 0}


def examples_model(request):
    """A model that answers with the mean or the most frequent label of the examples in the prompt."""
    body = json.loads(request.content)
    if request.url.path == "/v1/completions":
        labels = [float(label) for label in re.findall(r"^= (.+)$", body["prompt"], re.MULTILINE)]
        value = sum(labels) / len(labels) if labels else body["number"]["range"][0]
        number = {"value": value, "support": [{"value": value, "probability": 1}], "mass": MASS}
        return httpx.Response(200, json={"choices": [{"text": "", "number": number}]})
    labels = Counter(re.findall(r"^= (.+)$", body["input"], re.MULTILINE))
    names = [choice["value"] for choice in body["questions"][0]["choices"]]
    weights = [1 + labels[name] for name in names]
    probabilities = [{"value": name, "probability": weight / sum(weights)} for name, weight in zip(names, weights)]
    best = max(probabilities, key=lambda one: one["probability"])["value"]
    answer = {"type": "choice", "choice": best, "probabilities": probabilities, "confidence": 0, "x_mass": MASS}
    return httpx.Response(200, json={"answers": [answer]})


client = ntl.Client("http://server", transport=httpx.MockTransport(examples_model), concurrency=1)


@parametrize_with_checks([ntl.NumberRegressor(client), ntl.DecisionClassifier(client)])
def test_scikit_learn_finds_nothing_to_complain_about(estimator, check):
    check(estimator)

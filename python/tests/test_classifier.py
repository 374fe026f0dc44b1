import json
import random

import httpx
import numpy as np
import pytest

pytest.importorskip("sklearn")

import ntl

MASS = {"closed": 1, "invalid": 0, "open": 0}
WORDS = ("refund", "login", "price")


def word_model(request):
    """A model that gives the option of a text's first word twice the probability of each other option."""
    body = json.loads(request.content)
    word = body["input"].rsplit("\n\n", 1)[-1].split()[0]
    names = [choice["value"] for choice in body["questions"][0]["choices"]]
    if word not in WORDS:
        return httpx.Response(200, json={"answers": [{"type": "refusal", "x_mass": {**MASS, "closed": 0, "invalid": 1}}]})
    right = names[WORDS.index(word) % len(names)]
    weights = [2 if name == right else 1 for name in names]
    probabilities = [{"value": name, "probability": weight / sum(weights)} for name, weight in zip(names, weights)]
    answer = {"type": "choice", "choice": right, "probabilities": probabilities, "confidence": 0.25, "x_mass": MASS}
    return httpx.Response(200, json={"answers": [answer]})


@pytest.fixture
def classifier():
    client = ntl.Client("http://server", transport=httpx.MockTransport(word_model))
    return ntl.DecisionClassifier(client, examples=2)


def rows(count, mistakes=0.0, seed=1):
    """Texts of a random word, with its label, or now and then another one."""
    random.seed(seed)
    words = [random.choice(WORDS) for _ in range(count)]
    labels = [random.choice("abc") if random.random() < mistakes else "abc"[WORDS.index(word)] for word in words]
    return [f"{word} {index}" for index, word in enumerate(words)], labels


def test_labels_have_the_probabilities_of_the_server(classifier):
    classifier.fit(*rows(60))
    assert classifier.classes_.tolist() == ["a", "b", "c"]
    assert classifier.predict_proba(["login 1", "price"]) == pytest.approx(np.array([[1, 2, 1], [1, 1, 2]]) / 4)
    assert classifier.predict(["login 1", "price"]).tolist() == ["b", "c"]
    assert classifier.score(*rows(30, seed=2)) == 1
    numbers = classifier.fit(["refund", "login", "refund"], [7, -3, 7])
    assert numbers.classes_.tolist() == [-3, 7] and numbers.predict(["login"]).tolist() == [7]


def test_the_question_has_the_labels_their_descriptions_and_examples(classifier):
    seen = []

    def respond(request):
        seen.append(json.loads(request.content))
        return word_model(request)

    client = ntl.Client("http://server", transport=httpx.MockTransport(respond))
    classifier.set_params(client=client, descriptions={True: "wants money"}, read="texts", orders=2, calibration=0)
    classifier.fit(["refund me", "login fails", "refund soon"], [True, False, True]).predict(["refund very soon"])
    choices = [{"value": "False"}, {"value": "True", "description": "wants money"}]
    assert seen == [{
        "input": "refund me\n= True\n\nrefund soon\n= True\n\nrefund very soon",
        "questions": [{"type": "choice", "instructions": "Which label does the last text have?", "choices": choices}],
        "x_read": "texts",
        "x_orders": 2,
    }]  # fmt: skip


@pytest.mark.parametrize("mistakes", [0.05, 0.4])
def test_sets_contain_the_right_label_as_often_as_stated(classifier, mistakes):
    classifier.fit(*rows(400, mistakes))
    texts, labels = rows(600, mistakes, seed=2)
    sets = classifier.predict_set(texts)
    right = [classifier.classes_.tolist().index(label) for label in labels]
    assert sets.shape == (600, 3) and sets.any(axis=1).all()
    assert np.mean(sets[np.arange(600), right]) >= 0.87
    # With few mistakes the most probable label is enough, and with many it is not.
    assert sets.sum(axis=1).tolist() == [1 if mistakes < 0.1 else 3] * 600


def test_sets_of_few_rows_are_the_model_s_own_with_a_warning(classifier):
    classifier.set_params(coverage=0.7).fit(["refund", "login", "price"], ["a", "b", "c"])
    with pytest.warns(UserWarning, match="too few rows"):
        assert classifier.predict_set(["login"]).tolist() == [[True, True, False]]


def test_a_refusal_has_equal_probabilities_and_a_warning(classifier):
    classifier.fit(*rows(60))
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        assert classifier.predict_proba(["login", "hello"])[1] == pytest.approx([1 / 3] * 3)


def test_it_works_in_pipelines_searches_and_cross_validation(classifier):
    from sklearn.model_selection import GridSearchCV, cross_val_predict
    from sklearn.pipeline import make_pipeline

    texts, labels = rows(60)
    assert cross_val_predict(classifier, texts, labels, cv=3).tolist() == labels
    probabilities = cross_val_predict(classifier, texts, labels, cv=3, method="predict_proba")
    assert probabilities.shape == (60, 3)
    search = GridSearchCV(make_pipeline(classifier), {"decisionclassifier__examples": [0, 2]}, cv=2, scoring="neg_log_loss")
    assert search.fit(texts, labels).best_score_ == pytest.approx(np.log(0.5))


def test_a_served_model_predicts_labels_and_numbers(client):
    texts = ["great room", "dirty room", "great staff", "dirty floor"] * 10
    classifier = ntl.DecisionClassifier(client, examples=2, read="texts").fit(texts, ["good", "bad"] * 20)
    assert classifier.predict_proba(texts[:3]).sum(axis=1) == pytest.approx(1)
    assert classifier.predict_set(texts[:3]).shape == (3, 2)
    regressor = ntl.NumberRegressor(client, template="How many stars: {text}?", examples=0, range=(1, 5))
    regressor.fit(texts, [5, 1] * 20)
    assert ((1 <= regressor.predict(texts[:2])) & (regressor.predict(texts[:2]) <= 5)).all()
    low, high = regressor.predict_interval(texts[:1])[0]
    assert low <= high

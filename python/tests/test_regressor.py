import json
import random

import httpx
import numpy as np
import pytest

pytest.importorskip("sklearn")

import ntl


def length_model(request):
    """A model that reads the length of the last row's text, give or take one."""
    body = json.loads(request.content)
    row = body["prompt"].rsplit("\n=", 1)[0].rsplit("\n\n", 1)[-1]
    length = len(row)
    support = [{"value": length + step, "probability": p} for step, p in ((-1, 0.25), (0, 0.5), (1, 0.25))]
    low, high = body["number"]["range"]
    support = [entry for entry in support if low <= entry["value"] <= high]
    number = {"value": length, "support": support, "mass": {"closed": 1, "invalid": 0, "open": 0}}
    return httpx.Response(200, json={"choices": [{"text": "", "number": number}]})


@pytest.fixture
def regressor():
    client = ntl.Client("http://server", transport=httpx.MockTransport(length_model))
    return ntl.NumberRegressor(client, examples=3, range=(0, 100))


def rows(count, seed=1):
    random.seed(seed)
    texts = ["a" * random.randrange(1, 40) for _ in range(count)]
    return texts, [len(text) + random.choice([-3, -2, -1, 0, 1, 2, 3]) for text in texts]


def test_predictions_are_the_server_s_estimates_and_intervals_contain_the_stated_share(regressor):
    regressor.fit(*rows(100))
    texts, labels = rows(400, seed=2)
    assert list(regressor.predict(texts[:5])) == [len(text) for text in texts[:5]]
    intervals = regressor.predict_interval(texts)
    covered = [low <= label <= high for (low, high), label in zip(intervals, labels)]
    assert intervals.shape == (400, 2)
    assert 0.85 <= np.mean(covered) <= 1
    quantiles = regressor.predict_quantiles(texts[:2], [0.1, 0.5, 0.9])
    assert quantiles.shape == (2, 3) and (np.diff(quantiles) >= 0).all()
    assert regressor.crps(texts, labels) < 2
    assert regressor.score(texts, labels) > 0.9


def test_the_prompt_has_the_nearest_examples_last_and_the_decimals_of_y(regressor):
    regressor.fit(["red house", "blue boat", "red boat"], [1.5, 2.25, 3])
    assert regressor.prompts(["a red boat"])[0].endswith("red boat\n= 3.00\n\na red boat\n=")
    regressor.set_params(examples=0).fit(["a", "b"], [1, 2])
    assert regressor.prompts(["c"]) == ["c\n="]
    regressor.set_params(examples=1, template="{text} costs").fit(["a", "b"], [1, 2])
    assert regressor.prompts(["b"]) == ["b costs 2\n\nb costs"]


def test_options_are_further_fields_of_each_request():
    sent = []

    def model(request):
        sent.append(json.loads(request.content)["number"])
        return length_model(request)

    client = ntl.Client("http://server", transport=httpx.MockTransport(model))
    options = {"tolerance": 0.05, "nodes_max": 100}
    ntl.NumberRegressor(client, options=options).fit(["a", "b"], [0.5, 2]).predict(["c"])
    assert [fields | options | {"decimals_max": 1, "sign": False} for fields in sent] == sent and len(sent) == 1


def test_rows_of_a_table_fill_the_template(regressor):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"rooms": [2, 3], "city": ["Rome {x}", "Oslo"]})
    regressor.set_params(template="{rooms} rooms in {city}", examples=1).fit(table, [1, 2])
    assert regressor.texts_ == ["2 rooms in Rome {x}", "3 rooms in Oslo"]
    regressor.set_params(template=None).fit(table, [1, 2])
    assert regressor.texts_[1] == "rooms: 3\ncity: Oslo\n="
    with pytest.raises(ValueError, match="feature names"):
        regressor.predict(table.rename(columns={"city": "town"}))
    regressor.set_params(template="{text}!").fit(table["city"], [1, 2])
    assert regressor.texts_ == ["Rome {x}!", "Oslo!"]
    polars = pytest.importorskip("polars")
    regressor.set_params(template=None).fit(polars.DataFrame({"rooms": [2, None], "city": ["Rome", "Oslo"]}), [1, 2])
    assert regressor.texts_ == ["rooms: 2\ncity: Rome\n=", "rooms: \ncity: Oslo\n="]
    regressor.set_params(template="{beds}")
    with pytest.raises(ValueError, match="beds.*rooms, city"):
        regressor.fit(table, [1, 2])


def test_unusable_parameters_and_data_are_named(regressor):
    for change, problem in [({"examples": -1}, "examples"), ({"selection": "best"}, "selection"), ({"coverage": 1}, "coverage")]:
        with pytest.raises(ValueError, match=problem):
            ntl.NumberRegressor(regressor.client, **change).fit(["a"], [1])
    with pytest.raises(ValueError, match=r"y\[1\]"):
        regressor.fit(["a", "b"], [1, float("nan")])
    with pytest.raises(ValueError, match="inconsistent numbers"):
        regressor.fit(["a", "b"], [1])
    with pytest.raises(ValueError, match="no rows"):
        regressor.fit(pytest.importorskip("pandas").Series([], dtype=str), [])


def test_a_row_without_a_number_is_named(regressor):
    nothing = {"value": None, "support": [], "mass": {"closed": 0, "invalid": 1, "open": 0}, "reason": "it wrote `yes`"}
    answer = httpx.Response(200, json={"choices": [{"text": "", "number": nothing}]})
    client = ntl.Client("http://server", transport=httpx.MockTransport(lambda _: answer))
    regressor.fit(["a", "b"], [1, 2]).set_params(client=client)
    with pytest.raises(ntl.NoNumber, match="row 0: it wrote `yes`"):
        regressor.predict(["a"])


def test_rows_that_calibrate_are_not_examples(regressor):
    texts, labels = rows(100)
    seen = []

    def respond(request):
        seen.append(json.loads(request.content)["prompt"])
        return length_model(request)

    client = ntl.Client("http://server", transport=httpx.MockTransport(respond))
    unique = [f"{text} {index}" for index, text in enumerate(texts)]
    regressor.set_params(client=client).fit(unique, labels)
    asked = {prompt.rsplit("\n\n", 1)[-1] for prompt in seen}
    assert len(asked) == 20 and asked | set(regressor.texts_) == {f"{text}\n=" for text in unique}
    assert not asked & set(regressor.texts_)


def test_intervals_of_few_rows_are_the_model_s_own_with_a_warning(regressor):
    texts, labels = rows(17)
    regressor.fit(texts, labels)
    assert regressor.offset_ is None and len(regressor.texts_) == 17
    with pytest.warns(UserWarning, match="too few rows"):
        assert regressor.predict_interval(["aaaa"]).tolist() == [[3, 5]]
    regressor.fit(*rows(18))
    assert regressor.offset_ is not None and len(regressor.texts_) == 9


def test_intervals_of_a_model_that_is_too_uncertain_shrink_to_a_point_at_most(regressor):
    texts, _ = rows(100)
    regressor.fit(texts, [len(text) for text in texts])
    assert regressor.offset_ == -1
    assert regressor.predict_interval(["aaaa"]).tolist() == [[4, 4]]
    regressor.offset_ = -3
    assert regressor.predict_interval(["aaaa"]).tolist() == [[4, 4]]


def test_it_works_in_pipelines_searches_and_cross_validation(regressor):
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_predict
    from sklearn.pipeline import make_pipeline

    texts, labels = rows(30)
    assert clone(regressor).get_params()["examples"] == 3
    predicted = cross_val_predict(regressor, np.array(texts), np.array(labels), cv=3)
    assert list(predicted) == [len(text) for text in texts]
    search = GridSearchCV(make_pipeline(regressor), {"numberregressor__examples": [0, 2]}, cv=2).fit(texts, labels)
    assert search.best_score_ > 0.9

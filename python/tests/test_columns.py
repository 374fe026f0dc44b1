import json
import math

import httpx
import pytest

import ntl


class Lengths:
    """A server whose model writes the length of the prompt, or one more. `fails_after` requests it fails."""

    def __init__(self):
        self.prompts = []
        self.fingerprint = self.answered_by = "f00d"
        self.dtype = "f32"
        self.fails_after = math.inf

    def __call__(self, request):
        if request.url.path == "/v1/models":
            model = {"id": "m", "fingerprint": self.fingerprint, "dtype": self.dtype, "backend": "native"}
            return httpx.Response(200, json={"data": [model]})
        prompt = json.loads(request.content)["prompt"]
        if len(self.prompts) >= self.fails_after:
            return httpx.Response(500, json={"error": {"message": "it failed", "type": "t", "param": None, "code": None}})
        self.prompts.append(prompt)
        length = len(prompt)
        support = [{"value": length, "probability": 0.6}, {"value": length + 1, "probability": 0.2}]
        mass = {"closed": 0.8, "invalid": 0.2, "open": 0}
        number = {"value": length + 0.25, "support": support, "mass": mass}
        if prompt == "none":
            number = {"value": None, "support": [], "mass": {"closed": 0, "invalid": 1, "open": 0}, "reason": "a text"}
        return httpx.Response(200, json={"choices": [{"text": "", "number": number}], "system_fingerprint": self.answered_by})


@pytest.fixture
def server():
    return Lengths()


@pytest.fixture
def near(server):
    return ntl.Client("http://server", transport=httpx.MockTransport(server), concurrency=1)


def test_a_column_of_pandas_keeps_its_index_and_its_name(near, server):
    pandas = pytest.importorskip("pandas")
    texts = pandas.Series(["a", "bb", "a", "none"], index=[7, 5, 3, 1], name="price")
    values = ntl.predict(texts, near)
    assert (values.name, values.index.tolist(), values.dtype) == ("price", [7, 5, 3, 1], float)
    assert values.tolist()[:3] == [1.25, 2.25, 1.25] and math.isnan(values[1])
    # Equal prompts are requested once.
    assert sorted(server.prompts) == ["a", "bb", "none"]
    table = pandas.DataFrame({"city": ["Oslo", "Rome"], "rooms": [2, 3]}, index=["x", "y"])
    found = ntl.predict(table, near, template="{city} {rooms}", estimates=["value", "mean", "mode", 0.9, "closed"])
    assert found.columns.tolist() == ["value", "mean", "mode", "q0.9", "closed"]
    assert found.index.tolist() == ["x", "y"]
    assert found.loc["x"].tolist() == pytest.approx([6.25, 6.25, 6, 7, 0.8])


def test_a_column_of_polars_stays_one(near):
    polars = pytest.importorskip("polars")
    values = ntl.predict(polars.Series("price", ["a", "none"]), near)
    assert (values.name, values.to_list()) == ("price", [1.25, None])
    table = ntl.predict(polars.DataFrame({"text": ["a", "none"]}), near, template="{text}", estimates=["median", "std", "closed"])
    assert table.columns == ["median", "std", "closed"]
    assert table.row(0) == pytest.approx((1, (0.75 * 0.25**2 + 0.25 * 0.75**2) ** 0.5, 0.8))
    assert table.row(1) == (None, None, 0)


def test_lists_stay_lists_and_unknown_estimates_are_named(near):
    assert ntl.predict(["a", "bb"], near) == [1.25, 2.25]
    assert ntl.predict(["a", "bb"], near, estimates=["mode"]) == {"mode": [1, 2]}
    with pytest.raises(ValueError, match="'average'"):
        ntl.predict(["a"], near, estimates=["average"])


def test_an_interrupted_call_continues_from_the_cache(near, server, tmp_path, capsys):
    texts = [f"text {index}" for index in range(20)]
    server.fails_after = 12
    with pytest.raises(ntl.RequestRejected):
        ntl.predict(texts, near, cache=tmp_path / "cache")
    server.fails_after = math.inf
    values = ntl.predict(texts, near, cache=tmp_path / "cache", progress=True)
    assert len(server.prompts) == 20
    assert "8/8" in capsys.readouterr().err
    assert ntl.predict(texts, near, cache=tmp_path / "cache") == values == ntl.predict(texts, near)
    assert len(server.prompts) == 40


def test_another_model_and_other_options_are_requested_anew(near, server, tmp_path):
    def requests(**options):
        before = len(server.prompts)
        ntl.predict(["a"], near, cache=tmp_path / "cache", **options)
        return len(server.prompts) - before

    assert [requests(), requests()] == [1, 0]
    assert [requests(range=[0, 9]), requests(range=[0, 9])] == [1, 0]
    assert requests(template="{text}!") == 1
    server.dtype = "q8_0"
    assert [requests(), requests()] == [1, 0]
    server.fingerprint = server.answered_by = "beef"
    assert [requests(), requests()] == [1, 0]
    server.answered_by = "cafe"
    with pytest.raises(ntl.NtlError, match="changed from beef to cafe"):
        requests(template="{text}?")
    server.fingerprint = None
    with pytest.raises(ntl.NtlError, match="m has none"):
        requests()
    near._requests = type(near._requests)("other")
    with pytest.raises(ntl.NtlError, match="one of m"):
        requests()


def test_a_file_that_is_not_a_cache_is_named(near, tmp_path):
    (tmp_path / "notes").write_text("not a database, and long enough to be read as one" * 30)
    with pytest.raises(ntl.NtlError, match="notes"):
        ntl.predict(["a"], near, cache=tmp_path / "notes")


def test_a_served_model_fills_a_cache(client, tmp_path):
    texts = ["How many stars: great room?", "How many stars: dirty room?"]
    first = ntl.predict(texts, client, cache=tmp_path / "cache", scale=[1, 5])
    assert ntl.predict(texts, client, cache=tmp_path / "cache", scale=[1, 5]) == first
    assert first == [found.value for found in client.numbers(texts, scale=[1, 5])]

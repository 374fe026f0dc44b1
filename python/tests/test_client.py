import asyncio
import json
import os

import httpx
import pytest

import ntl

ANSWER = {"choices": [{"text": "4", "number": {"value": 4, "support": [{"value": 4, "probability": 1}]}}]}


def answering(respond, **options):
    return ntl.Client("http://server/v1/", transport=httpx.MockTransport(respond), **options)


def test_a_number_is_requested_with_its_options_and_the_key():
    seen = []

    def respond(request):
        seen.append(request)
        return httpx.Response(200, json=ANSWER)

    client = answering(respond, model="m", api_key="secret")
    assert client.number("2 + 2 =", range=[0, 9]).value == 4
    assert str(seen[0].url) == "http://server/v1/completions"
    assert seen[0].headers["authorization"] == "Bearer secret"
    body = {"prompt": "2 + 2 =", "model": "m", "number": {"support": 1000, "range": [0, 9]}}
    assert json.loads(seen[0].content) == body
    client.number([{"role": "user", "content": "2 + 2?"}])
    assert seen[1].url.path == "/v1/chat/completions"


def test_errors_have_the_message_the_field_and_the_status():
    error = {"error": {"message": "`range` must be two numbers", "type": "t", "param": "number.range", "code": None}}
    with pytest.raises(ntl.RequestRejected, match="two numbers") as raised:
        answering(lambda _: httpx.Response(400, json=error)).number("x", range=3)
    assert (raised.value.status, raised.value.field) == (400, "number.range")
    with pytest.raises(ntl.RequestRejected, match="bad gateway"):
        answering(lambda _: httpx.Response(502, text="bad gateway")).number("x")
    with pytest.raises(ntl.UnexpectedResponse):
        answering(lambda _: httpx.Response(200, json={"choices": []})).number("x")


def test_a_full_queue_is_tried_again_and_other_errors_are_not():
    statuses = [429, 503, 200]
    full = {"error": {"message": "the queue is full", "type": "t", "param": None, "code": "queue_full"}}

    def respond(_):
        status = statuses.pop(0)
        return httpx.Response(status, json=ANSWER if status == 200 else full, headers={"Retry-After": "0"})

    assert answering(respond).number("x").value == 4
    statuses[:] = [500, 200]
    with pytest.raises(ntl.RequestRejected):
        answering(respond).number("x")
    assert statuses == [200]
    statuses[:] = [429] * 2
    with pytest.raises(ntl.RequestRejected, match="the queue is full"):
        answering(respond, attempts=2).number("x")


def test_a_server_that_cannot_be_reached_and_one_that_is_slow_are_named():
    def refused(request):
        raise httpx.ConnectError("refused", request=request)

    def slow(request):
        raise httpx.ReadTimeout("read", request=request)

    with pytest.raises(ntl.Unreachable, match="refused"):
        answering(refused, attempts=1).number("x")
    with pytest.raises(ntl.Unreachable, match="time-out"):
        answering(slow).number("x")


def echo(request):
    value = float(json.loads(request.content)["prompt"])
    number = {"value": value, "support": [{"value": value, "probability": 1}]}
    return httpx.Response(200, json={"choices": [{"text": "", "number": number}]})


def test_numbers_keep_the_order_of_the_prompts(capsys):
    prompts = [str(index) for index in range(100)]
    found = answering(echo).numbers(prompts, progress=True)
    assert [one.value for one in found] == list(range(100))
    assert "100/100" in capsys.readouterr().err

    async def concurrently():
        async with ntl.AsyncClient("http://server", transport=httpx.MockTransport(echo)) as client:
            return await client.numbers(prompts)

    assert [one.value for one in asyncio.run(concurrently())] == list(range(100))
    assert answering(echo).numbers([]) == []


def test_the_first_error_ends_many_numbers():
    error = {"error": {"message": "too long", "type": "t", "param": "prompt", "code": None}}
    rejecting = httpx.MockTransport(lambda _: httpx.Response(400, json=error))
    with pytest.raises(ntl.RequestRejected, match="too long"):
        ntl.Client("http://server", transport=rejecting).numbers(["a"] * 50)

    async def concurrently():
        async with ntl.AsyncClient("http://server", transport=rejecting) as client:
            await client.numbers(["a"] * 50)

    with pytest.raises(ntl.RequestRejected, match="too long"):
        asyncio.run(concurrently())


def test_a_served_model_returns_its_distribution(client):
    stars = client.number("How many stars: decent room, opinions are divided?")
    assert stars.values == (1, 2, 3, 4, 5)
    assert stars.mass.closed > 0.99
    assert stars.mean == pytest.approx(stars.value, abs=0.05)
    with pytest.raises(ntl.RequestRejected) as raised:
        client.number("x", quantiles=[2])
    assert raised.value.status == 400 and "quantiles" in str(raised.value)
    scored = client.score([{"prompt": "What is 1 + 1?", "candidates": ["2", "3"]}])
    assert scored[0]["candidates"][0]["probability"] > 0.5
    assert client.models()[0]["id"]


def test_a_server_that_cannot_start_shows_its_log(client):
    program = os.environ["NTL_SERVER"]
    with pytest.raises(ntl.ServerFailed, match="/no/such/directory"), ntl.serve("/no/such/directory", server=program):
        pass

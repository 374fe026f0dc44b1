"""Three replicas behind a router: HAProxy and vllm-router, each as deploy/ configures it. Each response equals a replica's;
one replica drains and one dies under load; the router's cost is measured."""

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from conftest import FIXTURES

DEPLOY = Path(__file__).parents[2] / "deploy"
REPLICAS = 3
CLIENTS = 6

ROUTERS = ["haproxy", "vllm-router"]

NUMBER = {"tolerance": 1e-9, "nodes_max": 1500}

REQUESTS = [
    *(("/v1/completions", {"prompt": f"What is {k} - 20?", "number": NUMBER}) for k in (100, 7, 53)),
    ("/v1/completions", {"prompt": ["Add 3 and 4.", "Add 5 and 6."], "number": True}),
    ("/v1/completions", {"prompt": "Add 3 and 4.", "temperature": 0, "logprobs": 2}),
    ("/v1/completions", {"prompt": "Add 3 and 4.", "seed": 5, "n": 3}),
    ("/v1/completions", {"prompt": "Add 3 and 4.", "temperature": 0, "stream": True}),
    ("/v1/completions", {"prompt": "What is 12 + 7?", "number": NUMBER, "stream": True}),
    ("/v1/score", {"items": [{"prompt": "What is 336 - -20?", "target": "356"}]}),
]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def haproxy(replicas, port, folder):
    """HAProxy with the committed file, except for the addresses."""
    if not shutil.which("haproxy"):
        pytest.skip("haproxy is not installed (apt-get install haproxy)")
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    for place, address in [("bind :8000", f"bind 127.0.0.1:{port}")] + [
        (f"10.0.0.{11 + number}:8000", replica.address) for number, replica in enumerate(replicas)
    ]:
        assert text.count(place) == 1
        text = text.replace(place, address)
    file = folder / "haproxy.cfg"
    file.write_text(text)
    checked = subprocess.run(["haproxy", "-c", "-f", file], capture_output=True, text=True)
    assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr
    return ["haproxy", "-db", "-f", file], {}


def vllm_router(replicas, port, _folder):
    if not shutil.which("vllm-router"):
        pytest.skip("vllm-router is not installed (pip install vllm-router)")
    settings = {"HOST": "127.0.0.1", "PORT": str(port), "METRICS_PORT": str(free_port())}
    return [DEPLOY / "vllm-router" / "run", *(replica.url for replica in replicas)], settings


@contextlib.contextmanager
def routed(name, replicas, folder):
    """The URL of a router before these replicas, once it passes requests on."""
    port = free_port()
    command, settings = {"haproxy": haproxy, "vllm-router": vllm_router}[name](replicas, port, folder)
    url = f"http://127.0.0.1:{port}"
    with open(folder / "router.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | settings)
    try:
        end = time.monotonic() + 60
        while not is_ready(url):
            assert process.poll() is None and time.monotonic() < end, (folder / "router.log").read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_ready(url):
    try:
        return httpx.get(f"{url}/v1/models").status_code == 200
    except httpx.TransportError:
        return False


def without_names(body):
    return {name: value for name, value in body.items() if name not in ("id", "created")}


def ask(client, path, body):
    """Returns the response without the fields that differ between responses, or a text if the request failed."""
    try:
        answer = client.post(path, json=body)
    except httpx.TransportError as error:
        return f"{type(error).__name__}"
    if answer.status_code != 200:
        # Routers have their own errors, in plain text.
        return f"status {answer.status_code}"
    if not body.get("stream"):
        return json.dumps(without_names(answer.json()))
    events = re.findall(r"^data: (.*)$", answer.text, re.MULTILINE)
    if not events or events.pop() != "[DONE]":
        return "the stream broke off"
    # Tokens are sent as they come, so the pieces may be cut otherwise; the text and the number may not
    # differ.
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    numbers = [choice["number"] for choice in choices if choice.get("number")]
    return json.dumps(["".join(choice["text"] for choice in choices), numbers])


def client_of(url):
    return httpx.Client(base_url=url, timeout=120)


@pytest.fixture
def replicas(start, request):
    """With flags where the test names some."""
    return [start("--threads", "1", *getattr(request, "param", ())) for _ in range(REPLICAS)]


@pytest.fixture
def expected(replicas):
    """The responses of each replica without a router."""
    answers = []
    for replica in replicas:
        with client_of(replica.url) as client:
            answers.append([ask(client, path, body) for path, body in REQUESTS])
    assert all(answer.startswith(("{", "[")) for answer in answers[0]), answers[0]
    assert answers[1:] == answers[:-1]
    return answers[0]


class Load:
    """Clients that ask all requests again and again until they are stopped."""

    def __init__(self, url, expected):
        self.expected, self.stopped = expected, False
        self.right, self.wrong, self.failed = 0, 0, []
        self.pool = concurrent.futures.ThreadPoolExecutor(CLIENTS)
        self.clients = [self.pool.submit(self.run, url, number) for number in range(CLIENTS)]

    def run(self, url, number):
        with client_of(url) as client:
            while not self.stopped:
                index = number % len(REQUESTS)
                number += 1
                path, body = REQUESTS[index]
                answer = ask(client, path, body)
                if answer == self.expected[index]:
                    self.right += 1
                elif answer.startswith(("{", "[")):
                    self.wrong += 1
                else:
                    self.failed.append((answer, bool(body.get("stream"))))

    def more(self, count, seconds=120):
        """Waits until `count` more requests have got a correct response."""
        wanted, end = self.right + count, time.monotonic() + seconds
        while self.right < wanted:
            assert time.monotonic() < end, f"{self.right} right, {self.wrong} wrong, failed: {self.failed}"
            time.sleep(0.01)

    def stop(self):
        self.stopped = True
        for client in self.clients:
            client.result()


def at_work(replicas):
    """A replica that is answering something right now."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for replica in replicas:
            if replica.metric("ntl_requests_in_flight") > 0:
                return replica
    raise AssertionError("no replica has work")


@pytest.mark.parametrize("router", ROUTERS)
def test_answers_through_a_router_are_those_of_a_replica(router, replicas, expected, tmp_path):
    with routed(router, replicas, tmp_path) as url, client_of(url) as client:
        for (path, body), answer in zip(REQUESTS * 2, expected * 2):
            assert ask(client, path, body) == answer
        answered = client.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "fleet-1"})
        assert answered.headers["x-request-id"] == "fleet-1"
        refused = client.post("/v1/completions", json={"prompt": "x", "temperature": -1})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "temperature"


# The routers look every second whether a replica is ready.
@pytest.mark.parametrize("replicas", [["--drain-delay", "3"]], indirect=True, ids=["drain-delay"])
@pytest.mark.parametrize("router", ROUTERS)
def test_a_replica_that_drains_loses_no_request(router, replicas, expected, tmp_path, report):
    with routed(router, replicas, tmp_path) as url:
        load = Load(url, expected)
        load.more(50)
        drained = at_work(replicas)
        drained.terminate()
        assert drained.process.wait(60) == 0, drained.logged()
        load.more(50)
        load.stop()
    report(router=router, fault="SIGTERM", right=load.right, wrong=load.wrong, failed=len(load.failed))
    assert load.wrong == 0 and load.failed == []


@pytest.mark.parametrize("router", ROUTERS)
def test_a_replica_that_is_killed_costs_at_most_what_it_was_answering(router, replicas, expected, tmp_path, report):
    with routed(router, replicas, tmp_path) as url:
        load = Load(url, expected)
        load.more(50)
        killed = at_work(replicas)
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        load.more(100)
        load.stop()
    streams = sum(is_stream for _, is_stream in load.failed)
    report(router=router, fault="SIGKILL", right=load.right, wrong=load.wrong, failed=len(load.failed), streams=streams,
           how=sorted({answer for answer, _ in load.failed}))
    # Each client had one request at most at the replica. An answer that has begun cannot be repeated.
    assert load.wrong == 0 and len(load.failed) <= CLIENTS, load.failed


def evaluate(url, folder, *flags):
    """Runs ntl-eval on rJokes against a URL, or several separated by commas."""
    program = Path(os.environ["NTL_SERVER"]).with_name("ntl-eval")
    data = FIXTURES.parent / "data" / "rjokes" / "test.tsv.gz"
    for needed in (program, data):
        if not needed.exists():
            pytest.skip(f"there is no {needed}")
    command = [program, "rjokes", "--data", data, "--mode", "regress", "--limit", "300", "--concurrency", "8", "--quiet"]
    process = subprocess.Popen([*command, "--endpoint", url, "--out", folder, *flags], stdout=subprocess.DEVNULL)
    try:
        yield process
        # 4: some items failed; prompts that are too long for the model do.
        assert process.wait(300) in (0, 4)
    finally:
        process.kill()


def report_of(folder):
    report = json.loads((folder / "report.json").read_text())
    return {name: value for name, value in report.items() if name not in ("endpoint", "started", "seconds")}


@pytest.mark.parametrize("router", ["haproxy", None])
def test_an_evaluation_over_replicas_loses_nothing_to_one_that_dies(router, replicas, tmp_path):
    evaluation = contextlib.contextmanager(evaluate)
    with evaluation(replicas[0].url, tmp_path / "one"):
        pass
    each = contextlib.nullcontext(",".join(replica.url for replica in replicas))
    with routed(router, replicas, tmp_path) if router else each as url:
        with evaluation(url, tmp_path / "three") as process:
            replicas[1].wait(lambda: replicas[1].metric("ntl_generation_tokens_total") > 20)
            replicas[1].process.send_signal(signal.SIGKILL)
            assert process.poll() is None, "the evaluation had ended before"
    assert report_of(tmp_path / "three") == report_of(tmp_path / "one")
    # The message of an item that failed names the address.
    items = [(tmp_path / name / "samples.jsonl").read_text() for name in ("one", "three")]
    for asked in (*url.split(","), replicas[0].url):
        items = [text.replace(asked, "URL") for text in items]
    assert items[0] == items[1]


# Decoded in well under a millisecond, so that what the router adds is not lost in it.
SHORT = {"prompt": [5, 1], "max_tokens": 1, "temperature": 0}


def milliseconds(client):
    began = time.perf_counter()
    assert client.post("/v1/completions", json=SHORT).status_code == 200
    return (time.perf_counter() - began) * 1e3


def answers_a_second(url, clients=8, count=25):
    def some(_):
        with client_of(url) as client:
            for _ in range(count):
                milliseconds(client)

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(some, range(clients)))
    return clients * count / (time.perf_counter() - began)


@pytest.mark.parametrize("router", ROUTERS)
def test_what_a_router_costs_before_one_replica(router, start, tmp_path, report):
    replica = start()
    # The committed configuration of HAProxy has three places; the replica takes all of them.
    with routed(router, [replica] * (REPLICAS if router == "haproxy" else 1), tmp_path) as url:
        with client_of(replica.url) as near, client_of(url) as far:
            pairs = [(milliseconds(near), milliseconds(far)) for _ in range(400)]
        rates = [(answers_a_second(replica.url), answers_a_second(url)) for _ in range(3)]
    direct, through = (statistics.median(values) for values in zip(*pairs))
    rate_direct, rate_through = (statistics.median(values) for values in zip(*rates))
    report(router=router, p50_ms_direct=round(direct, 2), p50_ms_through=round(through, 2),
           per_s_direct=round(rate_direct, 1), per_s_through=round(rate_through, 1))
    # A router that waits for a timer or opens a connection through a timeout would add far more.
    assert through - direct < 10

"""A judge over two replicas that are killed, stall, return garbage and come back: its report equals the report of a run without faults.

The replicas are ntl-servers with a tiny checkpoint. A proxy before each of them injects the faults. NTL_FAULT_ITEMS is the number of
items (300), NTL_EVAL the program (default: `ntl-eval` next to NTL_SERVER)."""

import http.client
import http.server
import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

import served

ITEMS = int(os.environ.get("NTL_FAULT_ITEMS", 300))
EVAL = Path(os.environ.get("NTL_EVAL", Path(os.environ["NTL_SERVER"]).with_name("ntl-eval")))
TINY = Path(__file__).parents[2] / "models" / "tests" / "data" / "tiny" / "llama-ntl"
FAULTS = ("kill", "stall", "garbage", "cut", "error")
# Until the next request arrives, or until a replica is available again.
PATIENCE = 60
GARBAGE = (b"<html>busy</html>", b'{"choices": [{"index": 7}]}', b"[" * 5000, b'{"choices": []}', b"")


class Proxy(http.server.ThreadingHTTPServer):
    """Passes requests on to a server, unless a fault is set. `kill` closes all connections and accepts none that work."""

    daemon_threads = True

    def __init__(self, server):
        super().__init__(("127.0.0.1", 0), Handler)
        self.address, self.fault, self.injected = server.address, None, dict.fromkeys(FAULTS, 0)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.name = f"127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """Closed connections are the purpose."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Prints nothing."""

    def pass_on(self):
        fault = self.server.fault
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if fault and (fault == "kill" or self.command == "POST"):
            self.server.injected[fault] += 1
        if fault == "kill":
            self.close_connection = True
            return
        if self.command == "POST" and fault == "stall":
            while self.server.fault == "stall":
                time.sleep(0.05)
            self.close_connection = True
            return
        if self.command == "POST" and fault == "garbage":
            self.reply(200, GARBAGE[self.server.injected[fault] % len(GARBAGE)])
            return
        if self.command == "POST" and fault == "error":
            self.reply(500, b'{"error": "out of memory"}')
            return
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        headers = {"content-type": "application/json"}
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        if self.command == "POST" and fault == "cut":
            self.reply(response.status, content[: len(content) // 2], length=len(content))
            self.close_connection = True
            return
        self.reply(response.status, content)

    do_GET = do_POST = pass_on

    def reply(self, status, content, length=None):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)


def items(folder):
    rooms = ("clean", "dirty", "small", "bright", "loud", "cold")
    room = lambda number: {"input": f"How was room {number}?", "answer": f"It was {rooms[number % 6]}.", "human_score": 1 + number % 9}
    lines = [room(number) for number in range(ITEMS)]
    file = folder / "items.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def judge(server, data, out):
    what = ["judge", "--data", data, "--template", "{input}\n{answer}\nRating:", "--scale", "1,9"]
    how = ["--endpoint", server.url, "--model", "judge", "--out", out, "--concurrency", 8, "--quiet"]
    run = subprocess.Popen([str(word) for word in [EVAL, *what, *how]], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return run


def result(out):
    """All files of a result, without what a clock says."""
    report = json.loads((out / "report.json").read_text())
    return {**report, "started": None, "seconds": None}, (out / "samples.jsonl").read_text()


@pytest.mark.skipif(not EVAL.is_file(), reason=f"there is no {EVAL}")
def test_faults_of_replicas_change_no_figure_of_a_judge(report, start, tmp_path):
    replicas = [start("--model", f"tiny={TINY}") for _ in range(2)]
    proxies = [Proxy(replica) for replica in replicas]
    urls = ",".join(f"http://{proxy.name}" for proxy in proxies)
    flags = ["--model", f"judge={urls}", "--tokenizer", f"judge={TINY}", "--upstream-timeout", 60]
    front, data, chooser = start(*flags), items(tmp_path), random.Random(17)

    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    run = judge(front, data, whole)
    assert run.wait(timeout=3000) == 0, run.stderr.read().decode()

    answered = lambda: front.metric("ntl_requests_total", route="/v1/completions", code="200")
    goal = answered() + ITEMS
    run, turn = judge(front, data, disturbed), 0
    # After its last item ntl-eval only computes the report. That takes a minute of a debug build on a busy
    # machine.
    asks_no_more = lambda: answered() >= goal or run.poll() is not None
    while not asks_no_more():
        # Each fault at each replica in turn. The other one answers meanwhile.
        proxy, fault = proxies[turn % 2], FAULTS[turn % len(FAULTS)]
        before = proxy.injected[fault]
        proxy.fault = fault
        front.wait(lambda: proxy.injected[fault] > before or asks_no_more(), PATIENCE)
        time.sleep(chooser.uniform(0.1, 0.5))
        proxy.fault = None
        front.wait(lambda: front.metric("ntl_upstream_up", replica=proxy.name) == 1 or asks_no_more(), PATIENCE)
        turn += 1
    assert run.wait(timeout=3000) == 0, run.stderr.read().decode()
    injected = {fault: sum(proxy.injected[fault] for proxy in proxies) for fault in FAULTS}
    report(items=ITEMS, injected=injected, requests=int(front.metric("ntl_upstream_requests_total")))
    assert all(injected.values()), injected
    assert result(disturbed) == result(whole)

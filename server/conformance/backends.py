#!/usr/bin/env python3
"""Does a checkpoint that both backends serve get the same answers from both, over HTTP?

    cargo build --release --package ntl-server --features mistralrs
    NTL_SERVER=target/release/ntl-server server/conformance/backends.py FOLDER... [--tolerance 1e-3]

Each FOLDER is a decoder-only checkpoint; one without a chat template gets a plain one (in a copy). It is served twice, with
`--backend native` and with `--backend mistralrs`. Whole answers are compared (texts and whole numbers the same, others within the
tolerance, relative where they are above 1): text in every way that is served, streams, echoes, chats, scores, numbers by every method.
Then each backend separately: streams contain the same text as whole responses. 32 concurrent requests of mixed lengths get the
responses that each gets alone. 16 clients that disconnect leave nothing running. Bad requests get the same 4xx on both. SIGTERM drains. Prints one line of JSON for each directory, with each backend's start time and peak memory. Exits with 1 if any check fails.
Needs only Python.
"""

import argparse
import http.client
import json
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from served import Server

COMPLETIONS, CHAT, SCORE = "/v1/completions", "/v1/chat/completions", "/v1/score"
BACKENDS = ("native", "mistralrs")
TEMPLATE = """{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
PROMPTS = [
    "Q: What is 12 + 7? A:",
    "Q: What is -17 + 4? A:",
    "Q: What is 336 - -20? A:",
    "Q: What is 5 - 8? A: -3\nQ: What is 40 - 3? A:",
]
# The trees of random weights have no end, and mistral.rs computes each of their rows from the prompt on.
NODES = 256
# The requests for each prompt.
TEXTS = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 7, "temperature": 0.8, "top_p": 0.9},
    "logprobs": {"temperature": 0, "logprobs": 5},
    "three": {"seed": 3, "n": 3},
    "best of three": {"seed": 3, "best_of": 3},
    "stop": {"temperature": 0, "stop": ["Q", "1", "\n"]},
    "penalties": {"temperature": 0, "presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "bias": {"temperature": 0, "logit_bias": {"20": 5, "30": -5}},
    "long": {"temperature": 0, "max_tokens": 64, "ignore_eos": True},
    "beams": {"use_beam_search": True, "beam_width": 4, "n": 2},
    "guided": {"temperature": 0, "guided_regex": " -?[0-9]{1,3}"},
    "echo": {"temperature": 0, "echo": True, "logprobs": 2, "max_tokens": 4},
    "prompt_logprobs": {"temperature": 0, "prompt_logprobs": 2, "max_tokens": 1, "return_token_ids": True},
    "number_tokens": {"temperature": 0, "logprobs": 1, "number_tokens": True},
    "tree": {"number": {"nodes_max": NODES}},
    "quantile": {"number": {"objective": {"quantile": 0.9}, "quantiles": [0.1, 0.5, 0.9], "nodes_max": NODES}},
    "mode": {"number": {"objective": "mode", "nodes_max": NODES}},
    "draws": {"number": {"method": "sample", "samples": 8}, "seed": 5},
    "number beams": {"number": {"method": "beam"}},
    "expectation": {"number": {"method": "token"}},
}
# Each is to be refused.
BAD = {
    "temperature": (COMPLETIONS, {"prompt": "1", "temperature": 9}),
    "prompt": (COMPLETIONS, {"prompt": 5}),
    "no prompt": (COMPLETIONS, {}),
    "token id": (COMPLETIONS, {"prompt": [10**9]}),
    "length": (COMPLETIONS, {"prompt": "1", "max_tokens": 10**6}),
    "long prompt": (COMPLETIONS, {"prompt": "12 " * 5000}),
    "number": (COMPLETIONS, {"prompt": "1", "number": {"trim": 3}}),
    "n": (COMPLETIONS, {"prompt": "1", "n": 0}),
    "regex": (COMPLETIONS, {"prompt": "1", "guided_regex": "("}),
    "model": (COMPLETIONS, {"prompt": "1", "model": "other"}),
    "messages": (CHAT, {"messages": []}),
    "items": (SCORE, {"items": [{"prompt": "1"}]}),
    "not JSON": (COMPLETIONS, "{"),
}
# Fields that may differ between two responses: names, times, and the number of steps.
OWN = {"id", "created", "forward_passes"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    return parser.parse_args()


def send(server, path, body):
    """A connection with a request on its way."""
    connection = http.client.HTTPConnection(server.address, timeout=300)
    text = body if isinstance(body, str) else json.dumps(body)
    connection.request("POST", path, text, {"Content-Type": "application/json"})
    return connection


def ask(server, path, body):
    """Status and answer."""
    connection = send(server, path, body)
    answer = connection.getresponse()
    said = answer.status, json.loads(answer.read())
    connection.close()
    return said


def stream(server, path, body):
    """The text of a stream."""
    connection = send(server, path, {**body, "stream": True})
    lines = connection.getresponse().read().decode().split("\n")
    connection.close()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"]:
        return f"no whole stream: {lines[-3:]}"
    return "".join(text_of(choice) for event in events[:-1] for choice in json.loads(event)["choices"])


def written(server, path, body):
    """The text of an answer."""
    status, answer = ask(server, path, body)
    return "".join(map(text_of, answer["choices"])) if status == 200 else f"no text: {status} {answer}"


def text_of(choice):
    """The text of a choice, in any of the forms that it comes in."""
    if "text" in choice:
        return choice["text"]
    return choice.get("delta", choice.get("message", {})).get("content") or ""


def apart(one, other, place=""):
    """Returns (path, distance) for each difference between two responses; infinity if rounding cannot explain it."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(one[key], other[key], f"{place}.{key}") for key in one if key not in OWN]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(a, b, f"{place}[{index}]") for index, (a, b) in enumerate(zip(one, other))]
    elif isinstance(one, float) and isinstance(other, float):
        return [(place, abs(one - other) / max(1, abs(one)))]
    elif one != other and fraction(one) and fraction(other):
        return apart(float(one), float(other), place)
    else:
        return [] if one == other else [(f"{place}: {str(one)[:80]!r}, {str(other)[:80]!r}", float("inf"))]
    return [found for pair in pairs for found in apart(*pair)]


def fraction(text):
    """Returns whether `text` is an estimate such as a mean, which is written with all its digits."""
    return isinstance(text, str) and re.fullmatch(r"-?\d+\.\d+", text)


class Comparison:
    """The findings about servers of one checkpoint, one per backend."""

    def __init__(self, servers, tolerance):
        self.servers, self.tolerance = servers, tolerance
        self.failed, self.worst = [], {}

    def check(self, holds, what):
        if not holds:
            self.failed.append(what)

    def same(self, name, path, body):
        """Asks both the same; a whole answer is to be the same."""
        (one_status, one), (other_status, other) = (ask(server, path, body) for server in self.servers.values())
        self.check(one_status == other_status == 200, f"{name}: {one_status}, {other_status} {str(other)[:200]}")
        for place, distance in apart(one, other):
            self.worst[name] = max(self.worst.get(name, 0), min(distance, 1e9))
            self.check(distance <= self.tolerance, f"{name}: {place} is {distance:.1e} apart")


def compare_answers(comparison):
    """Everything that is answered, by both."""
    for name, options in TEXTS.items():
        for prompt in PROMPTS:
            comparison.same(name, COMPLETIONS, {"prompt": prompt, "max_tokens": 12, **options})
    comparison.same("list", COMPLETIONS, {"prompt": PROMPTS, "temperature": 0, "max_tokens": 12, "logprobs": 1})
    messages = [{"role": "user", "content": "What is 12 + 7?"}]
    comparison.same("chat", CHAT, {"messages": messages, "temperature": 0, "max_tokens": 12})
    comparison.same("chat logprobs", CHAT, {"messages": messages, "seed": 1, "logprobs": True, "top_logprobs": 5, "n": 2})
    comparison.same("chat number", CHAT, {"messages": messages, "number": {"nodes_max": NODES}})
    comparison.same("score", SCORE, {"items": [{"prompt": prompt, "target": " 19"} for prompt in PROMPTS]})


def compare_refusals(comparison):
    """Bad requests: refused with a reason, the same by both."""
    for name, (path, body) in BAD.items():
        one, other = (ask(server, path, body) for server in comparison.servers.values())
        comparison.check(one == other and 400 <= one[0] < 500, f"bad {name}: {one}, {other}")


def check_streams(comparison, backend, server):
    for name in ("greedy", "sampled", "stop", "long"):
        body = {"prompt": PROMPTS[-1], "max_tokens": 12, **TEXTS[name]}
        same = stream(server, COMPLETIONS, body) == written(server, COMPLETIONS, body)
        comparison.check(same, f"{backend}: the stream {name} says something else")
    body = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "temperature": 0, "max_tokens": 12}
    same = stream(server, CHAT, body) == written(server, CHAT, body)
    comparison.check(same, f"{backend}: the stream of a chat says something else")


def check_company(comparison, backend, server):
    """32 concurrent requests of all lengths, texts and numbers: each gets the response that it gets alone."""
    bodies = [
        {"prompt": PROMPTS[k % len(PROMPTS)] * (1 + k % 5), "max_tokens": 1 + 3 * k, "seed": k, "ignore_eos": True}
        | ({"number": {"nodes_max": NODES}, "ignore_eos": False} if k % 8 == 7 else {})
        for k in range(32)
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(lambda body: ask(server, COMPLETIONS, body), bodies))
    for k, (body, (status, answer)) in enumerate(zip(bodies, together)):
        differences = apart(ask(server, COMPLETIONS, body)[1], answer)
        far = [found for found in differences if found[1] > comparison.tolerance]
        comparison.check(status == 200 and not far, f"{backend}: number {k} of 32 at once: {status} {far[:2]}")


def check_leavers(comparison, backend, server):
    """16 streams whose clients leave."""
    before = server.metric("ntl_finished_total", reason="abort")
    body = {"prompt": PROMPTS[0], "max_tokens": 400, "ignore_eos": True, "stream": True}
    connections = [send(server, COMPLETIONS, body) for _ in range(16)]
    server.wait(lambda: server.metric("ntl_requests_in_flight") == len(connections))
    for connection in connections:
        connection.close()
    server.wait(server.quiet)
    left = server.metric("ntl_finished_total", reason="abort") - before
    comparison.check(left == len(connections), f"{backend}: {left} of {len(connections)} clients that left are counted")
    answer = ask(server, COMPLETIONS, {"prompt": PROMPTS[0], "max_tokens": 2})
    comparison.check(answer[0] == 200, f"{backend}: after clients left: {answer}")


def check_health(comparison, backend, server):
    for path in ("/health", "/health/live", "/health/ready", "/metrics", "/v1/models"):
        status = server.status(path)
        comparison.check(status == 200, f"{backend}: {path}: {status}")
    comparison.check(server.metric("ntl_panics_total") == 0, f"{backend}: panics")
    comparison.check(server.metric("ntl_engine_up") == 1, f"{backend}: the engine is not up")


def check_drain(comparison, backend, server):
    """SIGTERM: what was accepted is answered, then it ends with 0."""
    body = {"prompt": PROMPTS[0], "max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, server, COMPLETIONS, body) for _ in range(4)]
        server.wait(lambda: server.metric("ntl_requests_in_flight") == len(asked))
        server.terminate()
        statuses = [answer.result()[0] for answer in asked]
    code = server.process.wait(timeout=60)
    comparison.check(statuses == [200] * 4 and code == 0, f"{backend}: SIGTERM: {statuses}, exit code {code}")


def template(folder, place):
    """A folder that can chat."""
    described = json.loads((folder / "tokenizer_config.json").read_text())
    if "chat_template" in described or (folder / "chat_template.jinja").exists():
        return folder
    copy = place / folder.name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("golden"))
    copy.chmod(0o755)
    (copy / "chat_template.jinja").write_text(TEMPLATE)
    return copy


def compared(folder, tolerance):
    """The report about a checkpoint."""
    model = f"model={folder.resolve()}"
    with Server("--backend", "native", "--model", model) as one, Server("--backend", "mistralrs", "--model", model) as other:
        servers = dict(zip(BACKENDS, (one, other)))
        comparison = Comparison(servers, tolerance)
        compare_answers(comparison)
        compare_refusals(comparison)
        for backend, server in servers.items():
            check_streams(comparison, backend, server)
            check_company(comparison, backend, server)
            check_leavers(comparison, backend, server)
            check_health(comparison, backend, server)
        peaks = {backend: round(server.peak_mebibytes(), 1) for backend, server in servers.items()}
        for backend, server in servers.items():
            check_drain(comparison, backend, server)
    return {
        "failures": len(comparison.failed),
        "failed": comparison.failed[:20],
        "worst": comparison.worst,
        "start_seconds": {backend: round(server.start_seconds, 3) for backend, server in servers.items()},
        "peak_mebibytes": peaks,
    }


def main():
    options = arguments()
    failed = False
    for folder in options.folders:
        with tempfile.TemporaryDirectory() as place:
            report = compared(template(folder, Path(place)), options.tolerance)
        print(json.dumps({"checkpoint": folder.name, **report}), flush=True)
        failed |= bool(report["failed"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

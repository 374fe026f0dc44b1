"""The numbers of real engines, compared with those of the same directory served natively. `just remote-check` runs it.

NTL_ENGINES is a directory with a model and engines that serve it, as docs/REMOTE.md describes; without it the tests are skipped.
NTL_REMOTE_PROMPTS is the number of prompts (30). An engine that runs already is used at NTL_VLLM_URL or NTL_LLAMA_CPP_URL."""

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest

ENGINES = Path(os.environ.get("NTL_ENGINES") or "/nonexistent")
PROMPTS = int(os.environ.get("NTL_REMOTE_PROMPTS", 30))
# vLLM compiles for minutes on a small machine.
START_SECONDS = 1800
# The engines' own difference of log-probabilities, and of values by it.
ROUNDING = 1e-4
VALUE_ROUNDING = 1e-3

SHOTS = """Rate the sentiment of each text from 1 (very negative) to 9 (very positive).
Text: I hate waiting in line for hours.
Rating: 2
Text: What a wonderful sunny day!
Rating: 8
"""
TEXTS = ("The staff was friendly", "The soup was cold", "I would come again", "The film is too long", "It works", "Nobody answered")


def requests():
    """Ratings, arithmetic problems and free numbers in turn."""
    for number in range(PROMPTS):
        text, small, large = TEXTS[number % len(TEXTS)], 2 + number % 17, 31 + 13 * number
        yield (
            {"prompt": f"{SHOTS}Text: {text}, {number}.\nRating:", "number": {"scale": [1, 9]}},
            {"prompt": f"Q: What is 3 + 4?\nA: 7\nQ: What is {small} + {large}?\nA:", "number": {"nodes_max": 200}},
            {"prompt": f"apple 4711 -> 4711\nbanana 18 -> 18\nlemon {large} ->", "number": {}},
        )[number % 3]


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def running(command, path, **environment):
    """An engine on a free port, which ends afterwards."""
    port = free_port()
    command = [str(word) for word in [*command, "--port", port]]
    log = subprocess.DEVNULL
    engine = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            assert engine.poll() is None and time.monotonic() < end, f"{command[0]} did not start"
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").status == 200:
                    break
            time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        engine.terminate()
        engine.wait()


def llama_cpp():
    program = next(ENGINES.glob("**/bin/llama-server"), None)
    if not program or not (ENGINES / "model.gguf").is_file():
        pytest.skip(f"NTL_ENGINES has no bin/llama-server and model.gguf: {ENGINES}")
    return running([program, "-m", ENGINES / "model.gguf", "-c", 8192, "--threads", 1, "--poll", 0], "/health")


def vllm():
    program = ENGINES / "vllm" / "bin" / "vllm"
    if not program.is_file():
        pytest.skip(f"there is no {program}")
    options = ["--dtype", "float32", "--enforce-eager", "--max-model-len", 2048, "--served-model-name", "model"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(os.cpu_count())}
    return running([program, "serve", ENGINES / "model", *options], "/health", **environment)


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm"])
def test_an_engine_gives_the_numbers_of_the_same_directory_served_natively(engine, report, start):
    model = ENGINES / "model"
    if not (model / "model.safetensors").is_file():
        pytest.skip(f"NTL_ENGINES names no directory with a model: {ENGINES}")
    url = os.environ.get(f"NTL_{engine.upper()}_URL")
    with contextlib.nullcontext(url) if url else {"llama_cpp": llama_cpp, "vllm": vllm}[engine]() as url:
        server = start("--model", f"native={model}", "--model", f"engine={url}", "--tokenizer", f"engine={model}")
        compare(server, engine, report)


def compare(server, engine, report):
    client = httpx.Client(base_url=server.url, timeout=600)

    def post(model, body):
        answer = client.post("/v1/completions", json={"model": model, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]

    seconds = {"native": 0.0, "engine": 0.0}
    nodes, difference, value_difference, beyond = 0, 0.0, 0.0, 0.0
    texts, equal, first = 0, 0, None
    for body in requests():
        numbers = {}
        for model in seconds:
            began = time.monotonic()
            numbers[model] = post(model, body)["number"]
            seconds[model] += time.monotonic() - began
        native, remote = numbers["native"], numbers["engine"]
        # Each closed probability lacks at most the open mass of its side.
        open_max = max(native["mass"]["open"], remote["mass"]["open"])
        supports = [{leaf["value"]: leaf["probability"] for leaf in number["support"]} for number in (native, remote)]
        for value in supports[0].keys() & supports[1].keys():
            apart = abs(supports[0][value] - supports[1][value])
            difference = max(difference, apart)
            assert apart <= open_max + ROUNDING, (body, value, native, remote)
        nodes += remote["nodes"]
        if native["value"] is not None:
            value_difference = max(value_difference, abs(native["value"] - remote["value"]) / (1 + abs(native["value"])))
            exact = post("native", {**body, "number": {**body["number"], "tolerance": 1e-4, "nodes_max": 1000}})["number"]
            bounds = remote["bounds"]["value"]
            if bounds and not exact["truncated"]:
                outside = max(bounds[0] - exact["value"], exact["value"] - bounds[1]) / (1 + abs(exact["value"]))
                beyond = max(beyond, outside)
                assert outside <= VALUE_ROUNDING, (body, exact, remote)
        if texts < PROMPTS // 3:
            greedy = {"prompt": body["prompt"], "max_tokens": 16, "temperature": 0}
            pair = [post(model, greedy)["text"] for model in seconds]
            texts, equal = texts + 1, equal + (pair[0] == pair[1])
            first = first or (pair if pair[0] != pair[1] else None)
    report(
        engine=engine,
        prompts=PROMPTS,
        nodes=nodes,
        largest_difference_of_probabilities=difference,
        largest_relative_difference_of_values=value_difference,
        largest_excess_over_bounds=max(0.0, beyond),
        seconds={model: round(spent, 1) for model, spent in seconds.items()},
        requests=int(server.metric("ntl_upstream_requests_total", model="engine")),
        equal_greedy_texts=f"{equal} of {texts}",
        first_different_texts=first,
    )

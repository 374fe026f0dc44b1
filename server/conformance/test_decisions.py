"""Decisions as other programs see them: jevcompat and the clients of both APIs, natively and over another engine.

NTL_DECISIONS_KIT names a virtual environment with jevcompat and the clients, as `../shared/decisions/install` makes it. NTL_SMOLLM2 names
the directory of SmolLM2-135M-Instruct, a model that chats."""

import os
import subprocess
from pathlib import Path

import httpx
import pytest

import engines
from conftest import FIXTURES, KEY, Server

KIT = Path(os.environ.get("NTL_DECISIONS_KIT") or "/nonexistent")
CLIENTS = FIXTURES.parent / "decisions" / "clients.py"
SMOLLM2 = os.environ.get("NTL_SMOLLM2")


def kit(*command):
    """Runs a program of the kit, and returns what it printed."""
    if not KIT.is_dir() or not CLIENTS.is_file():
        pytest.skip(f"NTL_DECISIONS_KIT names no directory, or there is no {CLIENTS}")
    done = subprocess.run([KIT / "bin" / command[0], *map(str, command[1:])], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(params=["encoder-decoder", "decoder-only", "remote", "vllm", "llama_cpp"])
def served(request, start):
    """The URL and the name of a model."""
    if request.param == "encoder-decoder":
        yield request.getfixturevalue("server").url, "t5-ntl-was"
        return
    if request.param in ("vllm", "llama_cpp"):
        with engines.engine(request.param) as url:
            server = Server("--model", f"m={url}", "--tokenizer", engines.model(), "--api-key", KEY)
            yield server.url, "m"
            server.stop()
        return
    if not SMOLLM2:
        pytest.skip("NTL_SMOLLM2 names no directory")
    native = start("--model", f"m={SMOLLM2}", "--api-key", KEY)
    if request.param == "decoder-only":
        yield native.url, "m"
        return
    over = start("--model", f"m={native.url}#m", "--upstream-api-key", KEY, "--tokenizer", SMOLLM2, "--api-key", KEY)
    yield over.url, "m"


def test_jevcompat_finds_nothing_to_complain_about(served, report):
    url, model = served
    printed = kit("jevcompat", "test", url, "--model", model, "--key", KEY)
    report(printed=printed.strip().splitlines()[-1])


def test_all_clients_read_the_answers(served, report):
    url, model = served
    printed = kit("python", CLIENTS, url, model, "--key", KEY)
    report(printed=printed.strip().splitlines()[-1])


def test_an_answer_is_bit_identical_alone_and_among_others(server):
    questions = [
        {"type": "predicate", "instructions": "Is it urgent?"},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": "refund"}, {"value": "refund denied"}]},
        {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
    ]
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:

        def ask(asked):
            answer = client.post("/v1/decisions", json={"input": "I was charged twice.", "questions": asked})
            assert answer.status_code == 200, answer.text
            return answer.json()["answers"]

        together = ask(questions)
        assert together == [ask([question])[0] for question in questions]
        assert together == ask(questions[::-1])[::-1]

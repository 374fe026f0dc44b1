"""The fields and shapes of a real vLLM, compared with ours over the same directory. `just vllm-check` runs it.

Both servers have the chat template of `chatml_tools.jinja`, which offers tools in the format `hermes`. Each request goes to both. An
answer is reduced to its status, the path and type of every value, and the text of a greedy answer. DIFFERENCES has every difference;
docs/API.md explains them. `engines.py` starts vLLM; without NTL_ENGINES the test is skipped. A vLLM at NTL_VLLM_URL needs the
options that the test would give it. NTL_VLLM_PRINT=1 prints what each request finds, and fails for nothing."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import engines
from vllm_differences import DIFFERENCES
from vllm_requests import requests

TEMPLATE = Path(__file__).parent / "chatml_tools.jinja"
# vLLM rejects requests with 400 or 422.
REJECTED = "rejected"
# Objects whose keys are ids or texts of tokens.
MAPS = {"prompt_logprobs", "top_logprobs"}


def reduced(answer):
    """The status of an answer and the lines of its shape."""
    if answer.status_code in (400, 422):
        return REJECTED, set()
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return "200 stream", stream_shape(answer.text)
    body = answer.json() if answer.headers.get("content-type", "").startswith("application/json") and answer.content else None
    return str(answer.status_code), set(shape(body, ""))


def stream_shape(text):
    """The lines of all events together."""
    lines = set()
    for event in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.splitlines() if ": " in line)
        name = f"({fields['event']}) " if "event" in fields else ""
        data = fields.get("data")
        if data == "[DONE]":
            lines.add("[DONE]")
        elif data:
            lines |= {f"{name}{line}" for line in shape(json.loads(data), "")}
    return lines


def shape(value, path, key=""):
    """A line with path and type for every value inside `value`. A null says as much as an absent field."""
    if isinstance(value, dict):
        names = dict.fromkeys(value)
        for name in names:
            at = f"{path}.*" if key in MAPS else f"{path}.{name}".lstrip(".")
            yield from shape(value[name], at, name if at[-1] != "*" else "")
        if not value:
            yield f"{path}: object"
    elif isinstance(value, list):
        for item in value:
            yield from shape(item, f"{path}[]", key)
        if not value:
            yield f"{path}: list"
    elif value is not None:
        yield f"{path}: {'boolean' if isinstance(value, bool) else 'text' if isinstance(value, str) else 'number'}"


def text_of(answer):
    """The texts of an answer, unless it is a stream."""
    if answer.status_code != 200 or not answer.headers["content-type"].startswith("application/json"):
        return None
    body = answer.json()
    # A null says as much as an empty text.
    texts = [choice.get("text") or choice.get("message", {}).get("content") or "" for choice in body.get("choices", [])]
    parts = [part["text"] for item in body.get("output", []) for part in item.get("content") or []]
    return [*texts, *parts, *([body["tokens"]] if "tokens" in body else [])]


def differences(request, theirs, ours):
    """The differences of two answers to a request."""
    (their_status, their_lines), (our_status, our_lines) = reduced(theirs), reduced(ours)
    route = request.route
    if their_status != our_status:
        return {f"{route} {request.name}: vLLM {their_status}, ours {our_status}"}
    found = {f"{route} only vLLM: {line}" for line in their_lines - our_lines}
    found |= {f"{route} only ours: {line}" for line in our_lines - their_lines}
    if request.is_greedy and text_of(theirs) != text_of(ours):
        found.add(f"{route} {request.name}: other text")
    return found


@pytest.fixture
def model(tmp_path):
    """The model of the engines with the template that offers tools."""
    folder = shutil.copytree(engines.model(), tmp_path / "model", copy_function=linked)
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    return folder


def linked(source, target):
    """A link to a file, or a copy of it on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def test_vllm_accepts_the_same_fields_and_answers_in_the_same_shapes(report, start, model):
    options = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", TEMPLATE]
    with engines.engine("vllm", *options) as url:
        server = start("--model", f"model={model}", "--request-timeout", "1800")
        clients = [httpx.Client(base_url=base, timeout=1800) for base in (url, server.url)]

        def answers(request):
            theirs, ours = (client.request(request.method, request.route, json=request.body) for client in clients)
            return request, theirs, ours

        found, sent = {}, 0
        for request, theirs, ours in ThreadPoolExecutor(engines.CONCURRENT).map(answers, requests()):
            sent += 1
            for line in differences(request, theirs, ours):
                found.setdefault(line, []).append(request.name)
            if os.environ.get("NTL_VLLM_PRINT"):
                print(json.dumps({"request": request.name, "body": request.body, "vllm": theirs.text, "ours": ours.text}))
    report(requests=sent, differences=len(found), known=len(DIFFERENCES))
    if os.environ.get("NTL_VLLM_PRINT"):
        pytest.skip(json.dumps(found, indent=1, sort_keys=True))
    assert found.keys() - DIFFERENCES == set(), {line: found[line] for line in found.keys() - DIFFERENCES}
    assert DIFFERENCES - found.keys() == set(), "no longer different"

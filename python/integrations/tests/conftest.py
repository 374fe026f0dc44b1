"""Serves the chat fixture."""

import os
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
sys.path.insert(0, str(REPOSITORY / "server/conformance"))

# Set before deepeval is imported: it sends no telemetry and reads no files of the user.
os.environ |= {"DEEPEVAL_TELEMETRY_OPT_OUT": "1", "DEEPEVAL_DISABLE_DOTENV": "1", "DEEPEVAL_DISABLE_LEGACY_KEYFILE": "1"}

import chat_fixture
from served import Server

# The fixture writes this before a score, as deepeval's judges do.
REASON = "Clear and correct."
OPENING = f'{{"reason": "{REASON}", "score":'


def judge_of(first, then=None, before="", after="}"):
    """Returns the table of a judge that writes `before`, a space, and a score. Its first digit is drawn from `first`. `then` has
    the transitions after a digit; other digits end the score."""
    opening = {">": {before: 1.0}, before: {" ": 1.0}} if before else {">": {" ": 1.0}}
    digits = {digit: {after: 1.0} for digit in "0123456789"} | (then or {})
    return {**opening, " ": first, **digits}


@pytest.fixture
def serve(tmp_path):
    """Starts a server of chat fixtures, {name: table of transitions}."""
    servers = []

    def serve(**tables):
        flags = [f"--model={name}={chat_fixture.write(tmp_path / name, table)}" for name, table in tables.items()]
        servers.append(Server(*flags))
        return f"{servers[-1].url}/v1"

    yield serve
    for server in servers:
        server.stop()


@pytest.fixture
def report(capsys):
    """Prints a line even if pytest captures output."""

    def report(line):
        with capsys.disabled():
            print(f"\n  {line}", end="")

    return report

"""The measured programs: each holds a loaded model and runs one command at a time."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent

# Threads of the previous program may spin for this long before they sleep.
REST_SECONDS = 0.3


class Unavailable(Exception):
    """A side that cannot run; the message is the reason."""


class Side:
    def __init__(self, name: str, command: list):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(list(map(str, command)), stdin=pipe, stdout=pipe, stderr=self.errors, text=True)
        self.about = self._answer()

    def ask(self, command: str, warm_up: str | None = None) -> dict:
        """Runs a command, right after another one if `warm_up` is given."""
        time.sleep(REST_SECONDS)
        if warm_up is not None:
            self._run(warm_up)
        return self._run(command)

    def _run(self, command: str) -> dict:
        print(command, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        raise Unavailable(reason(self.errors.read()))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def reason(text: str) -> str:
    """Returns the line that best explains why a program ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if "error" in line.lower()] or lines
    return said[-1] if said else "it ended without an error message"


def ours(model: Path, work: list, dtype: str) -> Side:
    return Side("ntl", [os.environ["NTL_BENCH"], "decode", "--model", model, "--dtype", dtype, "--batch", "-", *work])


def ctranslate2(converted: Path, work: list, compute_type: str) -> Side:
    program = [sys.executable, HERE / "side_ctranslate2.py", converted]
    return Side("CTranslate2", [*program, "--compute-type", compute_type, *work])


def mistralrs(model: Path, work: list) -> Side:
    server = os.environ.get("NTL_MISTRALRS")
    if server is None:
        raise Unavailable("NTL_MISTRALRS does not name an ntl-server built with it")
    return Side("mistral.rs", [sys.executable, HERE / "side_mistralrs.py", model, server, *work])


def onnxruntime(exported: Path, work: list) -> Side:
    return Side("ONNX Runtime", [sys.executable, HERE / "side_onnxruntime.py", exported, *work])


def transformers(model: Path, work: list, dtype: str) -> Side:
    return Side("transformers", [sys.executable, HERE / "side_transformers.py", model, "--dtype", dtype, *work])


def vllm(model: Path, work: list, dtype: str) -> Side:
    python = os.environ.get("NTL_VLLM")
    if python is None:
        raise Unavailable("NTL_VLLM is not set")
    return Side("vLLM", [python, HERE / "side_vllm.py", model, "--dtype", dtype, *work])

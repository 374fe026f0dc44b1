"""Starts the server of the installed wheel for the time of a `with` block."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .client import Client
from .errors import NtlError, ServerFailed

logger = logging.getLogger("ntl.server")
LEVELS = {"ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO, "DEBUG": logging.DEBUG, "TRACE": 5}
LINES_KEPT = 20
STOP_SECONDS = 30


def program() -> str:
    """The path of `ntl-server`: next to the running Python, as the wheel installs it, or in the PATH."""
    beside = Path(sys.executable).with_name("ntl-server")
    found = str(beside) if beside.is_file() else shutil.which("ntl-server")
    if found is None:
        raise NtlError("there is no program ntl-server next to this Python or in the PATH; install the wheel ntl-server")
    return found


@contextmanager
def serve(
    model: str | os.PathLike[str] | None = None,
    *flags: str,
    server: str | None = None,
    ready_seconds: float = 600.0,
) -> Iterator[Client]:
    """Starts an ntl-server on a free port and yields a client of it. The server stops at the end of the block.

    `model` is a checkpoint (`[NAME=]DIR`); without one, the server serves its demo checkpoint. `flags` are further
    flags of ntl-server. Its log goes to the logger `ntl.server`.
    """
    command = [server or program(), "--port", "0", "--log-format", "json", *flags]
    if model is not None:
        command += ["--model", os.fspath(model)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log = _Log(process)
    try:
        address = log.wait_until_ready(ready_seconds)
        with Client(f"http://{address}") as client:
            yield client
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Log:
    """Reads the log of a server on a thread and passes it on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.address: str | None = None
        self.is_ready = False
        self.last: deque[str] = deque(maxlen=LINES_KEPT)
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def wait_until_ready(self, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (self.is_ready and self.address):
                if not self.thread.is_alive() or time.monotonic() > deadline:
                    lines = "\n".join(self.last) or "its log is empty"
                    ended = self.process.poll() is not None
                    cause = "the server ended" if ended else f"the server was not ready within {seconds:g} seconds"
                    raise ServerFailed(f"{cause}:\n{lines}")
                self.changed.wait(0.1)
            return self.address

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._line(line.rstrip("\n"))

    def _line(self, line: str) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {}
        fields = entry.get("fields", entry) if isinstance(entry, dict) else {}
        message = str(fields.get("message", line))
        logger.log(LEVELS.get(str(entry.get("level", "INFO")), logging.INFO), "%s", message)
        with self.changed:
            self.last.append(message)
            self.address = fields.get("address") or self.address
            self.is_ready = self.is_ready or message == "ready"
            self.changed.notify_all()


__all__: Sequence[str] = ["program", "serve"]

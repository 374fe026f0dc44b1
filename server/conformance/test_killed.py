"""A run of ntl-eval during which it and the server are killed again and again: it ends in the report of a run without faults.

NTL_EVAL is the program (default: `ntl-eval` next to NTL_SERVER)."""

import contextlib
import json
import os
import random
import socket
import subprocess
import time
from pathlib import Path

import pytest

import served

KILLS = 50
# More than a fast machine answers between fifty kills.
ITEMS = 4000
EVAL = Path(os.environ.get("NTL_EVAL", Path(os.environ["NTL_SERVER"]).with_name("ntl-eval")))


def command(port, out):
    what = ["arithmetic", "--split", "interpolate", "--limit", ITEMS, "--max-tokens", 8]
    how = ["--endpoint", f"http://127.0.0.1:{port}", "--out", out, "--resume", "--concurrency", 8, "--quiet"]
    return [str(word) for word in [EVAL, *what, *how]]


def result(out):
    """All files of a result, without what a clock says."""
    report = json.loads((out / "report.json").read_text())
    return {**report, "started": None, "seconds": None}, (out / "samples.jsonl").read_text()


def answered(out):
    journal = out / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.is_file() else 0


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]


@pytest.mark.skipif(not EVAL.is_file(), reason=f"there is no {EVAL}")
def test_kills_of_either_side_at_any_moment_change_no_figure(report, tmp_path):
    chooser, port = random.Random(17), free_port()
    out, whole = tmp_path / "killed", tmp_path / "whole"
    serve = lambda: served.Server(port=port)
    server, run, killed = serve(), None, {"server": 0, "ntl-eval": 0, "at its end": 0}
    try:
        for _ in range(KILLS):
            run = run or subprocess.Popen(command(port, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # A moment is some answers away, and some milliseconds.
            goal = answered(out) + chooser.randrange(24)
            while run.poll() is None and answered(out) < goal:
                time.sleep(0.001)
            time.sleep(chooser.uniform(0, 0.03))
            if run.poll() is not None:
                run = None
                killed["at its end"] += 1
            elif chooser.random() < 0.3:
                killed["server"] += 1
                server.stop()
                server = serve()
            else:
                killed["ntl-eval"] += 1
                run.kill()
                run.wait()
                run = None
        if run:
            run.wait(timeout=300)
        # Requests that found no server are sent again.
        for _ in range(3):
            last = subprocess.run(command(port, out), capture_output=True, text=True, timeout=300)
            if last.returncode == 0:
                break
        assert last.returncode == 0, last.stderr
        undisturbed = subprocess.run(command(port, whole), capture_output=True, text=True, timeout=300)
        assert undisturbed.returncode == 0, undisturbed.stderr
    finally:
        server.stop()
    report(**killed, items=ITEMS)
    assert min(killed["server"], killed["ntl-eval"]) >= 5, killed
    assert result(out) == result(whole)

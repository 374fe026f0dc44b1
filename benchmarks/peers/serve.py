"""The protocol of `ntl-bench decode --batch -` for the programs of peers: one line of JSON about the program, then one
for each line of standard input. `8` measures a batch of 8, `prefill 8` measures one token of each prompt, `ids 8` returns the ids
that it decodes."""

import argparse
import json
import sys
import time
from pathlib import Path


def arguments() -> argparse.ArgumentParser:
    """Returns a parser of the arguments that all programs have; the caller adds others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--ids", type=Path, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    return parser


def serve(about: dict, decode, prefill=None):
    """Serves commands; `decode(batch)` returns a list of token ids for each prompt, and so does `prefill(batch)`."""
    answer(about)
    for line in sys.stdin:
        command, _, rest = line.strip().rpartition(" ")
        batch = int(rest)
        started = time.perf_counter()
        ids = prefill(batch) if command == "prefill" else decode(batch)
        seconds = time.perf_counter() - started
        if command == "ids":
            answer({"ids": ids})
        else:
            tokens = sum(len(row) for row in ids)
            answer({"batch": batch, "seconds": seconds, "tokens_per_second": tokens / seconds})


def answer(value: dict):
    print(json.dumps(value), flush=True)

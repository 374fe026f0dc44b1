"""mistral.rs behind the server's own HTTP: an `ntl-server` that was built with it, asked as many things at once as there are rows."""

import argparse
import json
import re
import subprocess
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ids
from serve import serve

START_SECONDS = 600

parser = argparse.ArgumentParser()
parser.add_argument("server", type=Path, help="ntl-server, built with the feature mistralrs")
parser.add_argument("model", type=Path)
parser.add_argument("--ids", type=Path, required=True)
parser.add_argument("--new-tokens", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
args = parser.parse_args()

prompts = ids.read(args.ids)
log = tempfile.NamedTemporaryFile("w+")
options = ["--backend", "mistralrs", "--dtype", "f32", "--threads", args.threads, "--port", 0, "--log-format", "json"]
command = [args.server, "--model", f"served={args.model}", *options]
server = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def address():
    """Where the server listens, once it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        said = Path(log.name).read_text()
        if found := re.search(r'"address":"([^"]+)"', said):
            try:
                urllib.request.urlopen(f"http://{found[1]}/health/ready").close()
                return found[1]
            except OSError:
                pass
        time.sleep(0.1)
    server.kill()
    raise SystemExit(f"error: the server did not begin to serve: {Path(log.name).read_text()[-500:]}")


def complete(prompt):
    body = {"model": "served", "prompt": prompt, "temperature": 0, "return_token_ids": True}
    body |= {"max_tokens": args.new_tokens, "min_tokens": args.new_tokens}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://{listening}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


try:
    listening = address()
    with ThreadPoolExecutor(max_workers=max(64, len(prompts))) as pool:
        about = {"name": "mistral.rs", "version": "0.8.1", "dtype": "float32"}
        serve(about, lambda batch: list(pool.map(complete, ids.batch(prompts, batch))))
finally:
    server.terminate()
    server.wait()

"""mistral.rs through HTTP: an `ntl-server` built with mistral.rs, with one concurrent request per row."""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ids
from serve import arguments, serve

sys.path.append(str(Path(__file__).parents[2] / "server/conformance"))
from served import Server

parser = arguments()
parser.add_argument("server", type=Path, help="ntl-server, built with the feature mistralrs")
args = parser.parse_args()

prompts = ids.read(args.ids)
options = ["--model", f"served={args.model}", "--backend", "mistralrs", "--dtype", "f32", "--threads", args.threads]


def complete(prompt):
    body = {"model": "served", "prompt": prompt, "temperature": 0, "return_token_ids": True}
    body |= {"max_tokens": args.new_tokens, "min_tokens": args.new_tokens}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


with Server(*options, program=args.server, seconds=600) as server:
    with ThreadPoolExecutor(max_workers=max(64, len(prompts))) as pool:
        about = {"name": "mistral.rs", "version": "0.8.1", "dtype": "float32"}
        serve(about, lambda batch: list(pool.map(complete, ids.batch(prompts, batch))))

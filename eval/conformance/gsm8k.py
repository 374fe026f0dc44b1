#!/usr/bin/env python3
"""GSM8K by lm-evaluation-harness and by ntl-eval on the same answers: are all prompts, extracted numbers and scores the same?

    python3 -m venv lm && lm/bin/pip install "lm_eval[api]==0.4.13"
    NTL_EVAL=target/release/ntl-eval lm/bin/python eval/conformance/gsm8k.py --data FOLDER [--shots 5] [--limit N]

FOLDER holds GSM8K's `test.jsonl` and `train.jsonl`. A server on a free port plays an OpenAI-style model. Its answer to
a question is the solution, changed in one of twelve ways: without `####`, with units, with a wrong sign, without a number, and so on.
Therefore scores are far from 0 and 1, and the two filters differ. Both programs run on it: lm-eval with its own task `gsm8k`,
of which only the place of the data is changed; ntl-eval with `--shots`. The script compares, item by item, the prompt,
what `strict-match` and `flexible-extract` extract, and whether they count it as right. It prints one line of JSON and
exits with 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FILTERS = {"strict-match": "strict", "flexible-extract": "flexible"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--limit", type=int)
    return parser.parse_args()


def read(file):
    """JSON lines. Not `splitlines`: the texts hold other kinds of line ends."""
    return [json.loads(line) for line in file.read_text().split("\n") if line]


def bent(question, answer):
    """The solution in one of twelve forms, always the same one for a question."""
    before, number = answer.rsplit("#### ", 1)
    forms = [
        answer,
        answer.replace("#### ", "The answer is "),
        f"It costs ${number}.00.",
        f"{answer}.",
        f"{answer} apples and 3 pears",
        f"#### {number}.",
        "I do not know",
        before,
        f"#### -{number}",
        f"so ${number} in total",
        f"#### {number}\n\nand then 5",
        f"#### {number},000\n#### {number}",
    ]
    return forms[int(hashlib.sha256(question.encode()).hexdigest(), 16) % len(forms)]


def serve(answers):
    """Answers completions until the process ends. Returns the base URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def reply(self, body):
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.reply({"object": "list", "data": [{"id": "bent", "object": "model"}]})

        def do_POST(self):
            prompts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
            prompts = prompts if isinstance(prompts, list) else [prompts]
            asked = [prompt.rsplit("Question: ", 1)[1].removesuffix("\nAnswer:") for prompt in prompts]
            choices = [
                {"index": index, "text": f" {answers[question]}", "finish_reason": "stop"}
                for index, question in enumerate(asked)
            ]
            self.reply({"id": "x", "object": "text_completion", "model": "bent", "choices": choices})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def run(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def by_lm_eval(url, options, folder):
    """(prompt, extracted number, right) of every item, by filter."""
    import lm_eval

    own = Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k.yaml"
    files = {split: str((options.data / f"{split}.jsonl").resolve()) for split in ("train", "test")}
    task = {"include": str(own), "task": "gsm8k_here", "dataset_path": "json", "dataset_name": None}
    task |= {"dataset_kwargs": {"data_files": files}}
    # JSON is YAML.
    (folder / "gsm8k_here.yaml").write_text(json.dumps(task))
    model = f"model=bent,base_url={url}/v1/completions,num_concurrent=8,tokenized_requests=False,tokenizer_backend=None"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model]
    command += ["--include_path", folder, "--tasks", "gsm8k_here", "--num_fewshot", options.shots]
    command += ["--output_path", folder / "out", "--log_samples"]
    command += ["--limit", options.limit] if options.limit else []
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    run(command, env=os.environ | offline)
    (samples,) = (folder / "out").rglob("samples_gsm8k_here_*.jsonl")
    found = {name: {} for name in FILTERS}
    for row in read(samples):
        prompt = row["arguments"]["gen_args_0"]["arg_0"]
        found[row["filter"]][row["doc_id"]] = (prompt, row["filtered_resps"][0], int(row["exact_match"]))
    return found


def by_ntl_eval(url, options, folder):
    """The same."""
    command = [os.environ.get("NTL_EVAL", "ntl-eval"), "gsm8k", "--endpoint", url, "--data", options.data]
    command += ["--shots", options.shots, "--out", folder / "ours", "--quiet"]
    run(command + (["--limit", options.limit] if options.limit else []))
    rows = read(folder / "ours/samples.jsonl")
    return {
        name: {
            row["doc_id"]: (row["arguments"]["gen_args_0"]["arg_0"], row["readings"][name], row[field]) for row in rows
        }
        for name, field in FILTERS.items()
    }


def main():
    options = arguments()
    docs = read(options.data / "test.jsonl")
    url = serve({doc["question"]: bent(doc["question"], doc["answer"]) for doc in docs})
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = by_lm_eval(url, options, Path(folder)), by_ntl_eval(url, options, Path(folder))
    report = {"shots": options.shots}
    for name in FILTERS:
        pairs = [(theirs[name][item], ours[name].get(item)) for item in theirs[name]]
        different = sum(a != b for a, b in pairs) + len(ours[name].keys() ^ theirs[name].keys())
        score = [sum(right for _, _, right in side[name].values()) / len(side[name]) for side in (theirs, ours)]
        report[name] = {"items": len(pairs), "different": different, "lm_eval": score[0], "ntl_eval": score[1]}
    print(json.dumps(report))
    return int(any(report[name]["different"] for name in FILTERS))


if __name__ == "__main__":
    sys.exit(main())

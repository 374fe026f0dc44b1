"""Compares ntl-bench with its peers: creates and converts checkpoints, alternates, compares ids; writes JSON, a table and plots."""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import ids
import plot
import report
import sides

HERE = Path(__file__).parent

# Size of the vocabulary, and the id that ends a prompt. T5Gemma needs a newer transformers than
# `requirements.txt` pins.
SHAPES = {
    "t5-small": (32128, 1),
    "t5-base": (32128, 1),
    "t5-v1.1-base": (32128, 1),
    "t5gemma-s": (256000, 1),
    "t5gemma2-270m": (262144, 1),
    "tinyllama": (32000, None),
    "llama-160m": (32000, None),
}

PEERS = {
    "f32": ["CTranslate2", "transformers", "mistral.rs"],
    "bf16": ["CTranslate2", "transformers"],
    "int8": ["CTranslate2", "ONNX Runtime"],
    "q8_0": ["CTranslate2"],
}
EVERY_PEER = list(dict.fromkeys(name for names in PEERS.values() for name in names))
# Names of the types in the peers' options.
DTYPE = {"f32": "float32", "bf16": "bfloat16", "int8": "int8", "q8_0": "int8"}
# mistral.rs has no encoder-decoder that writes text; ONNX Runtime has no decoder-only model here.
DECODER_ONLY, ENCODER_DECODER = ["mistral.rs"], ["ONNX Runtime"]


def arguments():
    names = lambda text: text.split(",")
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(prog="benchmarks/peers/run")
    parser.add_argument("--models", type=names, default=["t5-small", "t5-base", "t5-v1.1-base", "tinyllama"])
    parser.add_argument("--precisions", type=names, default=["f32", "bf16", "int8"])
    parser.add_argument("--peers", type=names, default=EVERY_PEER)
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5, help="alternations, after one warm-up run")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, required=True, help="directory for checkpoints, 13 GB for all models")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "target/peers", help="directory for results")
    args = parser.parse_args()
    for name, known in [("models", SHAPES), ("precisions", PEERS), ("peers", EVERY_PEER)]:
        for value in getattr(args, name):
            if value not in known:
                parser.error(f"--{name}: {value} is not one of {', '.join(known)}")
    return args


def made_once(folder: Path, command: list) -> Path:
    """Runs a command that fills a directory, unless an earlier run completed it."""
    if not (folder / ".complete").exists():
        print(f"making {folder} ...", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if made.returncode != 0:
            raise sides.Unavailable(sides.reason(made.stderr))
        (folder / ".complete").touch()
    return folder


def converted(checkpoint: Path, script: str, folder: Path) -> Path:
    """Returns the checkpoint in the format of a peer."""
    return made_once(folder, [sys.executable, HERE / script, checkpoint, folder])


def start(model: str, precision: str, args) -> list[sides.Side]:
    """Starts all available sides, ours first; prints which ones are unavailable, and why."""
    vocabulary, end = SHAPES[model]
    checkpoint = args.cache / "models" / model
    random = [os.environ["NTL_BENCH"], "random", model, checkpoint]
    args.cache.mkdir(parents=True, exist_ok=True)
    prompts = args.cache / f"{model}-{args.prompt_tokens}.ids"
    ids.write(prompts, max(args.batches), args.prompt_tokens, vocabulary, end)
    work = ["--ids", prompts, "--new-tokens", args.new_tokens, "--threads", args.threads]
    for_ctranslate2, for_onnxruntime = args.cache / "converted" / model, args.cache / "onnx" / model
    starts = {
        # Starts first, because the others read its checkpoint.
        "ntl": lambda: sides.ours(made_once(checkpoint, random), work, precision),
        "CTranslate2": lambda: sides.ctranslate2(
            converted(checkpoint, "convert.py", for_ctranslate2), work, DTYPE[precision]
        ),
        "ONNX Runtime": lambda: sides.onnxruntime(converted(checkpoint, "convert_onnx.py", for_onnxruntime), work),
        "transformers": lambda: sides.transformers(checkpoint, work, DTYPE[precision]),
        "mistral.rs": lambda: sides.mistralrs(checkpoint, work),
    }
    running = []
    known = [name for name in PEERS[precision] if name not in (ENCODER_DECODER if end is None else DECODER_ONLY)]
    for name in ["ntl", *[name for name in known if name in args.peers]]:
        try:
            running.append(starts[name]())
        except sides.Unavailable as unavailable:
            print(f"{model}, {precision}: {name} skipped: {unavailable}", file=sys.stderr)
            if name == "ntl":
                break
    return running


def measure(running: list[sides.Side], batch: int, rounds: int) -> dict:
    """Measures the ids of each side, then tokens per second in each round; every other round reverses the order."""
    decoded = {side.name: side.ask(f"ids {batch}")["ids"] for side in running}
    rates = {side.name: [] for side in running}
    for number in range(rounds + 1):
        for side in running if number % 2 else running[::-1]:
            rate = side.ask(str(batch))["tokens_per_second"]
            if number > 0:
                rates[side.name].append(rate)
    return {"batch": batch, "tokens_per_second": rates, "agreement": report.agreement(decoded)}


def compare(model: str, precision: str, args) -> dict | None:
    running = start(model, precision, args)
    try:
        if not running:
            return None
        batches = []
        for batch in args.batches:
            print(f"{model}, {precision}, batch {batch} ...", file=sys.stderr)
            batches.append(measure(running, batch, args.rounds))
        about = {side.name: side.about for side in running}
        roofline = running[0].ask("roofline")
        return {"model": model, "precision": precision, "about": about, "batches": batches, "roofline": roofline}
    finally:
        for side in running:
            side.close()


def machine() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    return {
        "processor": models[0] if models else platform.processor(),
        "processors": os.cpu_count(),
        "system": platform.platform(),
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
    }


def main():
    args = arguments()
    settings = {key: getattr(args, key) for key in ["rounds", "prompt_tokens", "new_tokens", "threads"]}
    results = {"machine": machine(), "settings": settings, "comparisons": []}
    args.out.mkdir(parents=True, exist_ok=True)
    for model in args.models:
        for precision in args.precisions:
            if comparison := compare(model, precision, args):
                results["comparisons"].append(comparison)
                (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if not results["comparisons"]:
        sys.exit("nothing was measured, for the reasons above")
    table = report.table(results)
    (args.out / "results.md").write_text(table)
    for precision in args.precisions:
        plot.write(args.out / f"{precision}.svg", precision, results)
    print(table)


main()

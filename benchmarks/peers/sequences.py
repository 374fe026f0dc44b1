"""Compares ntl-bench with llama.cpp and vLLM on one decoder-only model: prefill and decoding separately, by length of the
prompts and number of concurrent sequences. Prints a table; writes JSON with every measurement."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import ids
import report
import sides

HERE = Path(__file__).parent


def arguments():
    numbers = lambda text: [int(number) for number in text.split(",")]
    pair = lambda text: tuple(text.split("=", 1))
    parser = argparse.ArgumentParser(
        epilog="Environment variables: NTL_BENCH is the ntl-bench to measure. NTL_LLAMA_CPP is the directory of "
        "llama-batched-bench. NTL_VLLM is the Python of an environment with vLLM's CPU backend, which is compared in f32. "
        "Without one of the last two, that peer is left out."
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--vocabulary", type=int, required=True, help="number of token ids")
    parser.add_argument("--gguf", type=pair, action="append", default=[], help="DTYPE=FILE: the same weights for llama.cpp")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["f32", "int8", "q8_0"])
    parser.add_argument("--kv-cache-dtype", default="auto", help="element type of our keys and values (llama.cpp's are f16)")
    parser.add_argument("--prompt-tokens", type=numbers, default=[64, 1000])
    parser.add_argument("--sequences", type=numbers, default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=33)
    parser.add_argument("--rounds", type=int, default=3, help="alternations, after one warm-up with one sequence")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file for all measurements")
    return parser.parse_args()


class ByProtocol:
    """A side that follows the protocol of `serve.py`. Time of the prefill is the time of answers of one token; decoding takes the rest of longer answers.

    One sequence is computed right before each measurement: `llama-batched-bench` begins with 16 tokens, too."""

    def __init__(self, args, prompts, side):
        self.side = side(["--ids", prompts, "--threads", args.threads, "--new-tokens", args.new_tokens])

    def seconds(self, sequences):
        prefill = self.side.ask(f"prefill {sequences}", warm_up="prefill 1")["seconds"]
        both = self.side.ask(str(sequences), warm_up="1")["seconds"]
        return prefill, both - prefill

    def close(self):
        self.side.close()


class LlamaCpp:
    """`llama-batched-bench`, which loads the model in each call and decodes random ids."""

    def __init__(self, args, dtype, prompts):
        folder, files = os.environ.get("NTL_LLAMA_CPP"), dict(args.gguf)
        # Its 8-bit type is the peer of both of ours.
        file = files.get(dtype) or (files.get("q8_0") if dtype == "int8" else None)
        if folder is None or file is None:
            raise sides.Unavailable("NTL_LLAMA_CPP is not set" if folder is None else f"there is no --gguf {dtype}=FILE")
        self.program, self.file, self.args = Path(folder) / "llama-batched-bench", file, args
        self.prompt_tokens = len(ids.read(prompts)[0])

    def seconds(self, sequences):
        # It generates from the prompt's last token on, so that the first token counts as decoded.
        tokens = self.args.new_tokens - 1
        options = {"-m": self.file, "-npp": self.prompt_tokens, "-ntg": tokens, "-npl": sequences}
        options |= {"-c": sequences * (self.prompt_tokens + tokens), "-t": self.args.threads, "--output-format": "jsonl"}
        command = [self.program, *(text for option in options.items() for text in option)]
        found = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        answer = json.loads(next(line for line in found.stdout.splitlines() if line.startswith("{")))
        return answer["t_pp"], answer["t_tg"]

    def close(self):
        pass


def ours(args, dtype, prompts):
    return ByProtocol(args, prompts, lambda work: sides.ours(args.model, [*work, "--kv-cache-dtype", args.kv_cache_dtype], dtype))


def vllm(args, dtype, prompts):
    if dtype != "f32":
        raise sides.Unavailable("it is compared in f32")
    return ByProtocol(args, prompts, lambda work: sides.vllm(args.model, work, "float32"))


SIDES = {"ntl": ours, "llama.cpp": LlamaCpp, "vLLM": vllm}


def start(args, dtype, prompts):
    running = {}
    for name, kind in SIDES.items():
        try:
            running[name] = kind(args, dtype, prompts)
        except sides.Unavailable as unavailable:
            print(f"{dtype}: {name} skipped: {unavailable}", file=sys.stderr)
    return running


def measure(running, sequences, rounds):
    """Returns pairs of seconds, prefill and decoding, for each side and round; every other round reverses the order."""
    found = {name: [] for name in running}
    for number in range(rounds):
        for name in list(running) if number % 2 else list(running)[::-1]:
            found[name].append(running[name].seconds(sequences))
    return found


def row(args, measured):
    """Returns lines of the table for one measurement: a line for each peer."""
    cells = [measured["dtype"], str(measured["prompt_tokens"]), str(measured["sequences"])]
    seconds = measured["seconds"]
    tokens = [measured["sequences"] * measured["prompt_tokens"], measured["sequences"] * (args.new_tokens - 1)]
    rates = {name: [[tokens[part] / run[part] for run in runs] for part in [0, 1]] for name, runs in seconds.items()}
    for peer in [name for name in rates if name != "ntl"]:
        parts = []
        for part in [0, 1]:
            ours, theirs = rates["ntl"][part], rates[peer][part]
            ratios = report.ratios({"ntl": ours, peer: theirs}, peer)
            parts += [f"{median(ours):.1f}", f"{median(theirs):.1f}", report.ratio(ratios)]
        parts.append(report.ratio([sum(their) / sum(our) for our, their in zip(seconds["ntl"], seconds[peer])]))
        yield f"| {' | '.join([*cells, peer, *parts])} |"


def main():
    args = arguments()
    head = ["dtype", "prompt", "sequences", "peer", "ntl prefill tokens/s", "its", "ratio", "ntl decode tokens/s", "its", "ratio", "both"]
    print(f"| {' | '.join(head)} |\n|---|---:|---:|---|{'---:|' * 7}", flush=True)
    every = []
    for dtype in args.dtypes:
        for prompt_tokens in args.prompt_tokens:
            with tempfile.TemporaryDirectory() as folder:
                prompts = Path(folder) / "prompts.ids"
                ids.write(prompts, max(args.sequences), prompt_tokens, args.vocabulary, None)
                running = start(args, dtype, prompts)
                try:
                    measure(running, 1, 1)
                    for sequences in args.sequences:
                        seconds = measure(running, sequences, args.rounds)
                        every.append({"dtype": dtype, "prompt_tokens": prompt_tokens, "sequences": sequences, "seconds": seconds})
                        print(*row(args, every[-1]), sep="\n", flush=True)
                finally:
                    for side in running.values():
                        side.close()
            if args.out:
                args.out.write_text(json.dumps(every, indent=1) + "\n")


main()

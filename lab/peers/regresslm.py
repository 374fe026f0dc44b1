"""Compares the exact median and 90% interval of a RegressLM with samples in transformers 4.53.2.

    ntl-bench random regresslm-s DIR
    python regresslm.py DIR --server target/release/ntl-server [--scales 14,8,3] [--rounds 3]

Writes copies of the checkpoint whose output layer has other scales next to DIR: the smaller the scale, the less certain the model. Both
sides get the same random ids and two threads. They alternate for every prompt, and each is stopped while the other one works. transformers
samples the masked distribution, as RegressLM's `generate` does without top-p.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LogitsProcessor, T5GemmaConfig, T5GemmaForConditionalGeneration

HEAD = "model.lm_head.out_proj.weight"
# The scale of the head that `ntl-bench random` writes.
WRITTEN_SCALE = 14
SIGNS, DIGITS = range(1, 3), range(3, 13)
# Levels of the quantiles that locate a median of samples in the exact distribution.
LEVELS = [level / 100 for level in range(1, 100)]
# Threads of the side that has just worked may spin for this long before they sleep.
REST_SECONDS = 0.4


def arguments():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--server", type=Path, required=True)
    parser.add_argument("--scales", type=numbers, default=[14, 8, 3])
    parser.add_argument("--samples", type=numbers, default=[8, 128])
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def scaled(model: Path, scale: int) -> Path:
    """Returns a copy of the checkpoint with this scale of the output layer."""
    folder = model.with_name(f"{model.name}-scale-{scale}")
    if not folder.exists():
        shutil.copytree(model, folder, ignore=shutil.ignore_patterns("model.safetensors"))
        tensors = load_file(model / "model.safetensors")
        tensors[HEAD] = tensors[HEAD] * (scale / WRITTEN_SCALE)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


class Server:
    """An ntl-server, which is stopped between requests."""

    def __init__(self, program: Path, model: Path, threads: int):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [program, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--threads", str(threads), "--log", "error"])
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health")
                break
            except OSError:
                time.sleep(0.1)
        self.process.send_signal(signal.SIGSTOP)

    def number(self, prompt: list[int], quantiles: list[float] = [0.05, 0.5, 0.95]) -> tuple[float, dict]:
        number = {"objective": "median", "precision": 0, "interval": 0.9, "tolerance": 1e-9, "quantiles": quantiles, "support": 1}
        body = json.dumps({"prompt": prompt, "number": number}).encode()
        request = urllib.request.Request(self.url + "/v1/completions", body, {"content-type": "application/json"})
        self.process.send_signal(signal.SIGCONT)
        started = time.perf_counter()
        answer = json.load(urllib.request.urlopen(request))
        seconds = time.perf_counter() - started
        self.process.send_signal(signal.SIGSTOP)
        return seconds, answer["choices"][0]["number"]

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()


class NumberMask(LogitsProcessor):
    """Leaves the tokens that may follow: two signs, then digits."""

    def __call__(self, ids, logits):
        allowed = SIGNS if ids.shape[1] <= 2 else DIGITS
        masked = torch.full_like(logits, float("-inf"))
        masked[:, allowed.start : allowed.stop] = logits[:, allowed.start : allowed.stop]
        return masked


def reference(model: Path) -> T5GemmaForConditionalGeneration:
    stored = json.loads((model / "config.json").read_text())
    backbone = stored["backbone_config"]
    backbone["decoder"]["vocab_size"] = stored["decoder_vocab_size"]
    special = dict(pad_token_id=0, bos_token_id=0, eos_token_id=None)
    for stack in ["encoder", "decoder"]:
        backbone[stack] |= special
    config = T5GemmaConfig(encoder=backbone["encoder"], decoder=backbone["decoder"], tie_word_embeddings=False, **special)
    network = T5GemmaForConditionalGeneration(config).eval()
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(model / "model.safetensors").items()}
    network.load_state_dict(tensors)
    network.generation_config.eos_token_id = None
    return network


def value(ids: list[int]) -> float:
    sign, exponent_sign = (1 if token == SIGNS.start else -1 for token in ids[:2])
    digits = [token - DIGITS.start for token in ids[2:]]
    exponent = exponent_sign * (10 * digits[0] + digits[1])
    return float(f"{sign * int(''.join(map(str, digits[2:])))}e{exponent - 4}")


def distance(median: float, bounds: list[list[float]]) -> float:
    """Returns how far the level of a median of samples is from 0.5, to a hundredth, given the bounds of the quantiles at [`LEVELS`].

    If the bounds of a quantile differ, the level may be farther."""
    below, up_to = sum(high < median for _, high in bounds), sum(low <= median for low, _ in bounds)
    return round(max(0.0, below / 100 - 0.5, 0.5 - (up_to + 1) / 100), 2)


@torch.inference_mode()
def samples(network, prompt: list[int], count: int) -> tuple[float, list[float]]:
    inputs = torch.tensor([prompt])
    started = time.perf_counter()
    answers = network.generate(
        inputs, attention_mask=torch.ones_like(inputs), do_sample=True, temperature=1.0, top_k=0, num_return_sequences=count,
        min_new_tokens=9, max_new_tokens=9, decoder_start_token_id=0, use_cache=True, logits_processor=[NumberMask()])
    seconds = time.perf_counter() - started
    return seconds, sorted(value(answer[1:].tolist()) for answer in answers)


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    source = random.Random(0)
    prompts = [[source.randrange(3, 256_000) for _ in range(args.prompt_tokens)] for _ in range(args.prompts)]
    for scale in args.scales:
        model = scaled(args.model, scale)
        network, server = reference(model), Server(args.server, model, args.threads)
        server.number(prompts[0])
        samples(network, prompts[0], args.samples[0])
        for index, prompt in enumerate(prompts):
            times = {name: [] for name in ["tree", *args.samples]}
            medians = {count: [] for count in args.samples}
            for _ in range(args.rounds):
                time.sleep(REST_SECONDS)
                seconds, number = server.number(prompt)
                times["tree"].append(seconds)
                for count in args.samples:
                    seconds, drawn = samples(network, prompt, count)
                    times[count].append(seconds)
                    medians[count].append(statistics.median(drawn))
            tree = statistics.median(times["tree"])
            quantiles, bounds = [quantile["value"] for quantile in number["quantiles"]], number["bounds"]["quantiles"]
            is_exact = all(low == high for low, high in bounds)
            at_levels = server.number(prompt, LEVELS)[1]["bounds"]["quantiles"]
            distances = {count: [distance(median, at_levels) for median in medians[count]] for count in args.samples}
            row = {"scale": scale, "prompt": index, "mode": number["support"][0]["probability"], "nodes": number["nodes"],
                   "passes": number["forward_passes"], "quantiles": quantiles, "is_exact": is_exact, "seconds": times, "medians": medians,
                   "distances": distances, "exact_levels": sum(low == high for low, high in at_levels),
                   "ratios": {count: statistics.median(times[count]) / tree for count in args.samples}}
            print(json.dumps(row), flush=True)
        server.close()


main()

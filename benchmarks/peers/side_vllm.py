"""vLLM's offline engine on an unconverted checkpoint, with the CPU backend."""

import argparse
import os
import sys
import time
from pathlib import Path

import ids
from serve import answer

parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("--ids", type=Path, required=True)
parser.add_argument("--new-tokens", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
args = parser.parse_args()

os.environ |= {"OMP_NUM_THREADS": str(args.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "2"}
# The protocol has the standard output to itself.
protocol = os.dup(1)
os.dup2(2, 1)

import vllm

prompts = [vllm.TokensPrompt(prompt_token_ids=prompt) for prompt in ids.read(args.ids)]
model = vllm.LLM(str(args.model), dtype="float32", enable_prefix_caching=False, skip_tokenizer_init=True)
sys.stdout = os.fdopen(protocol, "w")


def seconds(sequences, tokens):
    parameters = vllm.SamplingParams(temperature=0, min_tokens=tokens, max_tokens=tokens, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    model.generate(ids.batch(prompts, sequences), parameters, use_tqdm=False)
    return time.perf_counter() - started


answer({"name": "vLLM", "version": vllm.__version__, "dtype": "float32"})
for line in sys.stdin:
    prefill = seconds(int(line), 1)
    answer({"prefill_seconds": prefill, "decode_seconds": seconds(int(line), args.new_tokens) - prefill})

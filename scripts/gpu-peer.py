"""Measures greedy `generate` of Hugging Face transformers on a GPU, in bf16, to compare it with `ntl-bench decode`.

Like there, prompts are random and answers never choose the end of sequence. Prints the median of five runs after a
warm-up run.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
import transformers

ROUNDS = 5

parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("--prompt-tokens", type=int, default=64)
parser.add_argument("--new-tokens", type=int, default=32)
parser.add_argument("--batch", default="1,8,32")
parser.add_argument("--device", default="cuda:0")
args = parser.parse_args()

config = transformers.AutoConfig.from_pretrained(args.model)
kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
model = kind.from_pretrained(args.model, torch_dtype=torch.bfloat16).eval().to(args.device)


@torch.inference_mode()
def seconds(inputs):
    torch.cuda.synchronize()
    started = time.perf_counter()
    answers = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        num_beams=1,
        min_new_tokens=args.new_tokens,
        max_new_tokens=args.new_tokens,
        pad_token_id=0,
    )
    answers.tolist()
    return time.perf_counter() - started


print(f"transformers {transformers.__version__}, torch {torch.__version__}, bfloat16")
print("| batch | tokens/s |\n|---:|---:|")
torch.manual_seed(0)
for batch in map(int, args.batch.split(",")):
    inputs = torch.randint(3, config.vocab_size, (batch, args.prompt_tokens), device=args.device)
    seconds(inputs)
    rates = [batch * args.new_tokens / seconds(inputs) for _ in range(ROUNDS)]
    print(f"| {batch} | {statistics.median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f}) |", flush=True)

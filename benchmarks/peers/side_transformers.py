"""Hugging Face transformers on a checkpoint as it is."""

import argparse
from pathlib import Path

import torch
import transformers

import ids
from serve import serve

parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("--ids", type=Path, required=True)
parser.add_argument("--new-tokens", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--dtype", required=True)
args = parser.parse_args()

torch.set_num_threads(args.threads)
config = transformers.AutoConfig.from_pretrained(args.model)
kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
model = kind.from_pretrained(args.model, torch_dtype=getattr(torch, args.dtype)).eval()
prompts = ids.read(args.ids)


@torch.inference_mode()
def decode(batch):
    inputs = torch.tensor(ids.batch(prompts, batch))
    answers = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        num_beams=1,
        min_new_tokens=args.new_tokens,
        max_new_tokens=args.new_tokens,
        pad_token_id=0,
    )
    return answers[:, 1 if config.is_encoder_decoder else inputs.shape[1] :].tolist()


about = {"name": "transformers", "version": transformers.__version__, "torch": torch.__version__, "dtype": args.dtype}
serve(about, decode)

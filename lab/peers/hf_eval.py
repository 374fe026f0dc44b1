#!/usr/bin/env python3
"""The NTL paper's evaluation of a T5, as a peer of `ntl-eval --mode paper`: Hugging Face `generate`, 4 beams, batches of 64.

    pip install torch transformers==4.45.2 sentencepiece protobuf
    lab/peers/hf_eval.py CHECKPOINT DATA --limit 512 --beams 4 --batch 64 --against RUN

CHECKPOINT: a directory from the paper's trainer with T5Custom_Tokenizer (`number_encoding: vanilla_t5_ntl`). DATA:
questions and answers on alternating lines. RUN: the `--out` of `ntl-eval arithmetic --split interpolate --data DATA
--limit 512 --mode paper` (with `--beams 1`: of `--mode text`) on the same checkpoint. Every text is compared with the
text in RUN, and any difference is an error. Prints one line of JSON. As in the paper's evaluation
(`CustomSeq2SeqTrainer`), a batch is padded to its longest question, and an answer may have 9 tokens more than the batch's
longest label, or `--new-tokens` tokens. The time includes tokenizing, generating and decoding, but not loading.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

import torch
from transformers import T5ForConditionalGeneration, T5Tokenizer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--against", type=Path, metavar="RUN")
    return parser.parse_args()


class Digits:
    """T5's slow tokenizer. Pieces that contain a digit are split into characters, as in T5Custom_Tokenizer."""

    def __init__(self, folder):
        self.pieces = T5Tokenizer.from_pretrained(folder, legacy=True)

    def ids(self, text):
        pieces = []
        for piece in self.pieces.tokenize(text):
            split = re.search(r"\d", piece) and not piece.startswith("<extra_id_")
            pieces.extend(piece if split else [piece])
        return [*self.pieces.convert_tokens_to_ids(pieces)[:511], self.pieces.eos_token_id]

    def texts(self, rows):
        return self.pieces.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=True)


@torch.inference_mode()
def answers(model, tokenizer, pairs, options):
    """Returns the texts of one batch."""
    rows = [tokenizer.ids(question) for question, _ in pairs]
    longest = max(len(tokenizer.ids(answer)) for _, answer in pairs)
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    # The decoder's start token counts towards `max_length`.
    max_length = options.new_tokens + 1 if options.new_tokens else longest + 10
    made = model.generate(
        input_ids=ids, attention_mask=mask, num_beams=options.beams, do_sample=False, max_length=max_length
    )
    return tokenizer.texts(made)


def differences(texts, run):
    """Returns the items whose text differs from a run of ntl-eval. Leading and trailing spaces, which vary between servers, do not count."""
    lines = [line for line in (run / "samples.jsonl").read_text().split("\n") if line]
    samples = sorted(map(json.loads, lines), key=lambda row: row["doc_id"])
    if len(samples) != len(texts):
        sys.exit(f"{run} has {len(samples)} items, expected {len(texts)}")
    pairs = ((text.strip(), "".join(sample["resps"][0]).strip()) for text, sample in zip(texts, samples))
    return [(index, ours, theirs) for index, (theirs, ours) in enumerate(pairs) if theirs != ours]


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    lines = [line.strip() for line in options.data.read_text().split("\n") if line]
    pairs = list(zip(lines[0::2], lines[1::2]))[: options.limit]
    tokenizer = Digits(options.checkpoint)
    model = T5ForConditionalGeneration.from_pretrained(options.checkpoint).eval()
    texts, started, processor = [], time.perf_counter(), time.process_time()
    for first in range(0, len(pairs), options.batch):
        texts += answers(model, tokenizer, pairs[first : first + options.batch], options)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    report = {"items": len(texts), "beams": options.beams, "batch": options.batch, "threads": options.threads}
    report |= {"seconds": round(seconds, 3), "processor_seconds": round(processor, 3)}
    report |= {"items_per_second": round(len(texts) / seconds, 1)}
    if options.against:
        different = differences(texts, options.against)
        report["different"] = len(different)
        for index, ours, theirs in different[:5]:
            print(f"item {index}: ntl-eval {ours!r}, generate {theirs!r}", file=sys.stderr)
    print(json.dumps(report))
    return 1 if report.get("different") else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Trains a model on one of the paper's datasets and writes the directory that `ntl-server --model` needs.

    python train.py --dataset arithmetic --train train.txt --kind t5 --objective ntl-was --output runs/t5-ntl-was

A stopped run resumes when the same command is given again. Its state is in OUTPUT/checkpoints.
"""

import argparse
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch
import transformers
from torch.utils.data import SequentialSampler
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint

import data
import kinds
from data import InputError
from objectives import OBJECTIVES, Objective


class NumberTrainer(Seq2SeqTrainer):
    """Computes the objective for the kind of model, and logs its parts."""

    def __init__(self, *args, kind, objective, tokenizer, facts, **kwargs):
        super().__init__(*args, **kwargs)
        self.kind, self.objective, self.tokenizer, self.facts = kind, objective, tokenizer, facts
        self.parts, self.model_accepts_loss_kwargs = {}, False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, parts = self.kind.loss(model, inputs, self.objective)
        for name, value in parts.items():
            self.parts.setdefault(name, []).append(value.detach())
        return (loss, None) if return_outputs else loss

    def _get_train_sampler(self, train_dataset=None):
        # Questions that are made on demand come in random order already, and there are too many to shuffle.
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(dataset, list):
            return SequentialSampler(dataset)
        return super()._get_train_sampler(train_dataset)

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_dir)
        self.tokenizer.save_pretrained(folder)
        (folder / "ntl.json").write_text(json.dumps(self.facts) + "\n", encoding="utf-8")

    def log(self, logs, *args, **kwargs):
        for name, values in self.parts.items():
            logs[name] = round(torch.stack(values).mean().item(), 5)
        self.parts.clear()
        super().log(logs, *args, **kwargs)


class Stopper(TrainerCallback):
    """Saves the state and ends the run when its minutes are over, or on SIGTERM and Ctrl-C."""

    def __init__(self, minutes):
        self.deadline = time.monotonic() + 60 * minutes if minutes else None
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask)

    def ask(self, *_):
        self.asked = True

    def on_step_end(self, args, state, control, **_):
        over = self.deadline is not None and time.monotonic() >= self.deadline
        if over or self.asked:
            control.should_save = control.should_training_stop = True
        return control


class Checker(TrainerCallback):
    """Answers validation questions greedily at every save, and logs the share of exact answers."""

    def __init__(self, kind, tokenizer, questions, log_file):
        self.kind, self.tokenizer, self.questions, self.log_file = kind, tokenizer, questions, log_file

    def on_save(self, args, state, control, model=None, **_):
        model.eval()
        answers = self.kind.answers(model, self.tokenizer, [row["question"] for row in self.questions])
        model.train()
        right = sum(answer == row["answer"] for answer, row in zip(answers, self.questions))
        line = {"step": state.global_step, "questions": len(answers), "exact": round(right / len(answers), 4)}
        with open(self.log_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, choices=data.DATASETS)
    parser.add_argument("--train", nargs="+", default=[], metavar="FILE", help="files to train on, see data.py")
    parser.add_argument("--validation", nargs="+", default=[], metavar="FILE", help="files to check answers on")
    parser.add_argument("--check", type=int, default=0, metavar="N", help="at every save, answer N validation questions")
    parser.add_argument("--kind", default="t5", choices=list(kinds.KINDS))
    parser.add_argument("--objective", default="ce", choices=list(OBJECTIVES))
    parser.add_argument("--ntl-weight", type=float, default=0.3, help="lambda (0.3, as in the paper)")
    parser.add_argument("--model", metavar="FOLDER", help="continue from this directory; without it, start from random weights")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    parser.add_argument("--max-steps", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, help="save the state and stop after N minutes")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16; weights stay in float32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=200, metavar="STEPS")
    parser.add_argument("--schedule", default="cosine", choices=["cosine", "linear", "constant_with_warmup"])
    parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=42)
    frozen = parser.add_argument_group("decoder-only models with --model")
    frozen.add_argument("--freeze", type=int, default=0, metavar="N", help="leave the embeddings and the lowest N layers as they are")
    frozen.add_argument("--states", metavar="FILE", help="file that keeps the states of the frozen layers, for many runs")
    size = parser.add_argument_group("size of a model from random weights")
    size.add_argument("--d-model", type=int, default=128)
    size.add_argument("--heads", type=int, default=4)
    size.add_argument("--d-ff", type=int, default=512)
    size.add_argument("--layers", type=int, default=4, help="of the encoder, or of a decoder-only model")
    size.add_argument("--decoder-layers", type=int, default=2)
    size.add_argument(
        "--tokenizer", default="spiece", choices=["spiece", "words"],
        help="t5: SentencePiece with split digits as in the paper, or tokenizer.json (see tokenizer.py)",
    )  # fmt: skip
    size.add_argument("--vocabulary", type=int, default=512, help="maximum number of tokens")
    size.add_argument("--max-length", type=int, default=512, help="tokens of a question, and of an answer")
    size.add_argument("--log-scale", action="store_true", help="t5-rt, t5-xval, t5-regression-head: numbers as logarithms")
    return parser.parse_args(arguments)


def write_record(output, args, model, steps, seconds):
    """Writes OUTPUT/training.json: the settings, and the duration of training over all parts of a stopped run."""
    record = output / "training.json"
    before = json.loads(record.read_text())["seconds"] if record.is_file() else 0.0
    names = ("dataset", "kind", "objective", "ntl_weight", "seed", "batch", "lr", "max_steps", "freeze")
    facts = {name: getattr(args, name) for name in names}
    facts |= {"parameters": sum(weights.numel() for weights in model.parameters()), "steps": steps}
    output.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(facts | {"seconds": round(before + seconds, 1)}) + "\n")


def run(args):
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch finds no CUDA device")
    kind = kinds.KINDS[args.kind]
    if args.objective != "ce" and not kind.takes_number_loss:
        raise InputError(f"--kind {args.kind} has a fixed loss: omit --objective")
    if args.model and not Path(args.model).is_dir():
        raise InputError(f"--model {args.model}: no such folder")
    if args.freeze and not (args.model and isinstance(kind, kinds.Llama)):
        raise InputError("--freeze needs --model and a decoder-only --kind")
    rows = data.load(args.dataset, args.train, "train", args.seed, args.validation)
    output = Path(args.output)
    checkpoints = output / "checkpoints"
    last = get_last_checkpoint(checkpoints) if checkpoints.is_dir() else None
    done = int(last.rpartition("-")[2]) if last else 0
    if done >= args.max_steps and (output / "model.safetensors").is_file():
        print(f"already finished after {done} steps: {output}", file=sys.stderr)
        return
    set_seed(args.seed)
    # A resumed run also loads its tokenizer: a new one, trained on files that have changed, would have other
    # token ids.
    source = last or args.model
    model, tokenizer = kind.open(source, args) if source else kind.create(args, rows)
    if args.max_length > kind.length_max(model):
        raise InputError(f"--max-length {args.max_length}: the model reads at most {kind.length_max(model)} tokens")
    if isinstance(rows, list):
        kind.check(tokenizer, rows, args.max_length)
    trainer = NumberTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(checkpoints), max_steps=args.max_steps, per_device_train_batch_size=args.batch,
            learning_rate=args.lr, warmup_steps=args.warmup, lr_scheduler_type=args.schedule, weight_decay=0.01,
            seed=args.seed, data_seed=args.seed, bf16=args.bf16, use_cpu=args.device == "cpu" or not torch.cuda.is_available(),
            save_steps=args.save_every, save_total_limit=2, logging_steps=min(100, args.save_every), report_to="none",
            remove_unused_columns=False, dataloader_num_workers=0,
        ),
        train_dataset=rows,
        data_collator=partial(kind.collate, tokenizer, args.max_length),
        kind=kind,
        tokenizer=tokenizer,
        facts=kind.facts(args),
        objective=Objective(args.objective, args.ntl_weight, tokenizer, model.config.vocab_size),
        callbacks=[Stopper(args.minutes)],
    )  # fmt: skip
    if args.check:
        held_out = data.load(args.dataset, args.validation, "test", args.seed)
        questions = [held_out[index] for index in range(min(args.check, len(held_out)))]
        trainer.add_callback(Checker(kind, tokenizer, questions, output / "exact.jsonl"))
    began = time.monotonic()
    trainer.train(resume_from_checkpoint=last)
    write_record(output, args, model, trainer.state.global_step, time.monotonic() - began)
    finished = trainer.state.global_step >= args.max_steps
    trainer.save_model(str(output))
    state = f"finished after {args.max_steps}" if finished else f"stopped at step {trainer.state.global_step} of {args.max_steps}"
    print(f"{state} steps: {output} (serve it: ntl-server --model {output})", file=sys.stderr)


def main(arguments=None):
    args = parse(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    transformers.logging.set_verbosity_error()
    try:
        run(args)
    except InputError as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

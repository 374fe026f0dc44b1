"""A predictor whose language model learns the rows: it trains a LoRA adapter, and serves the base model merged with it.

In: prompts and answers, and a decoder in the format of Hugging Face. Out: a directory with the adapter in the format of
PEFT, and one with the merged model. Only training and merging import torch, transformers and peft.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .columns import served
from .distribution import Distribution
from .errors import NtlError
from .regressor import NumberRegressor
from .server import serve

SETTINGS: Mapping[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
EPOCHS_MAX, BATCH, LEARNING_RATE, WARMUP, GRADIENT_MAX = 4, 4, 1e-3, 0.1, 1.0
# The share and the maximum of the rows whose loss ends the training.
STOPPING, STOPPING_MAX = 0.1, 100
# Ends the number, as in prompts with examples.
END = "\n"
RECORD = "training.json"
# The base model's files that are copied, unless transformers has written them. They include the tokenizer's.
COPIED = (".json", ".jinja", ".model", ".txt")


def check_base(base: Path) -> None:
    """Fails if a package or a file of the base model is missing."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers", "peft")):
        raise ImportError("lora needs torch, transformers and peft: pip install 'ntl-server[lora]'")
    for name in ("config.json", "tokenizer.json"):
        if not (base / name).is_file():
            raise NtlError(f"{base} has no {name}; lora needs the directory of a decoder in the format of Hugging Face")


@dataclass(frozen=True)
class _Row:
    """The token ids of a prompt and its answer. The answer has the last `count` of them."""

    ids: list[int]
    count: int


@dataclass(frozen=True)
class Lora:
    """The directories of the base model, of the adapter and of the merged model, and the program that serves the latter."""

    base: Path
    adapter: Path
    model: Path
    server: str | None

    def prepare(self, pairs: Sequence[tuple[str, str]], seed: int, progress: bool) -> None:
        """Writes the merged model. Trains the adapter first, unless it exists for the same base model, pairs and seed."""
        import peft  # pyright: ignore[reportMissingImports]
        import torch  # pyright: ignore[reportMissingImports]
        import transformers  # pyright: ignore[reportMissingImports]

        key, record = self._key(pairs, seed), self.adapter / RECORD
        if not progress:
            transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
        base = transformers.AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
        if record.is_file() and json.loads(record.read_text(encoding="utf-8"))["key"] == key:
            model = peft.PeftModel.from_pretrained(base, self.adapter)
        else:
            shutil.rmtree(self.adapter, ignore_errors=True)
            rows = _rows(self.base, pairs, base.config.max_position_embeddings)
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **SETTINGS))
                losses = _train(model, rows, seed, progress)
            model.save_pretrained(os.fspath(self.adapter))
            record.write_text(json.dumps({"key": key, "losses": losses}) + "\n", encoding="utf-8")
        # A server may have mapped the files of an earlier call.
        shutil.rmtree(self.model, ignore_errors=True)
        model.merge_and_unload().save_pretrained(self.model)
        for path in self.base.iterdir():
            is_index = path.name.endswith(".index.json")
            if path.suffix in COPIED and not is_index and not (self.model / path.name).exists():
                shutil.copyfile(path, self.model / path.name)

    def _key(self, pairs: Sequence[tuple[str, str]], seed: int) -> str:
        files = []
        for path in sorted(self.base.iterdir()):
            facts = path.stat()
            files.append([path.name, facts.st_size, facts.st_mtime_ns])
        training = [SETTINGS, EPOCHS_MAX, BATCH, LEARNING_RATE, WARMUP, GRADIENT_MAX, STOPPING, STOPPING_MAX, END]
        return hashlib.sha256(json.dumps([files, training, list(pairs), seed]).encode()).hexdigest()


class LoraRegressor(NumberRegressor):
    """Predicts with prompts without examples, and with an adapter that `fit` trains on the rows that do not calibrate.

    Each call starts a server of the merged model. `lora` has to be set before `fit`.
    """

    kind = "lora"
    lora: Lora
    served_: Mapping[str, Any]

    def _keep(self, texts: list[str], answers: list[str]) -> None:
        super()._keep(texts, answers)
        pairs = [(text, f"{self.separator}{answer}{END}") for text, answer in zip(texts, answers)]
        self.lora.prepare(pairs, self.seed, self.verbose)

    def _distributions(self, texts: list[str]) -> list[Distribution]:
        with serve(self.lora.model, server=self.lora.server) as self.client:
            self.served_ = served(self.client)
            return super()._distributions(texts)


def _rows(base: Path, pairs: Sequence[tuple[str, str]], tokens_max: int) -> list[_Row]:
    """The token ids by `tokenizer.json`, which the server reads too. Longer rows lose their beginning."""
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

    tokenizer = Tokenizer.from_file(os.fspath(base / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    rows = []
    for prompt, answer in pairs:
        before, ids = tokenizer.encode(prompt).ids, tokenizer.encode(prompt + answer).ids
        if ids[: len(before)] != before:
            raise NtlError(f"the tokenizer of {base} joins the end of the prompt and the number; change its end")
        rows.append(_Row(ids[-tokens_max:], len(ids) - len(before)))
    return rows


def _train(model: Any, rows: list[_Row], seed: int, progress: bool) -> list[float]:
    """Trains until the loss of some of the rows stops falling, and keeps the best weights.

    Returns that loss before the training and after each epoch.
    """
    import torch  # pyright: ignore[reportMissingImports]

    order = random.Random(seed)
    order.shuffle(rows)
    stopping = min(math.ceil(STOPPING * len(rows)), STOPPING_MAX)
    checked, batches = _batches(rows[:stopping]), _batches(rows[stopping:])
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=0.0)
    steps = EPOCHS_MAX * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (WARMUP * steps), 1 - step / steps)
    )
    losses = [_checked_loss(model, checked)]
    best = [weight.detach().clone() for weight in weights]
    for epoch in range(EPOCHS_MAX):
        model.train()
        order.shuffle(batches)
        for batch in batches:
            _loss(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(weights, GRADIENT_MAX)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(_checked_loss(model, checked))
        if progress:
            message = f"LoRA, epoch {epoch + 1} of at most {EPOCHS_MAX}: loss {losses[-1]:.4f} of {stopping} rows"
            print(f"{message}, before the training {losses[0]:.4f}", file=sys.stderr)
        if not losses[-1] < min(losses[:-1]):
            break
        best = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight, value in zip(weights, best):
            weight.copy_(value)
    model.to("cpu").eval()
    return losses


def _batches(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Batches of rows of similar lengths."""
    by_length = sorted(rows, key=lambda row: len(row.ids))
    return [by_length[start : start + BATCH] for start in range(0, len(rows), BATCH)]


def _checked_loss(model: Any, batches: Sequence[list[_Row]]) -> float:
    """The mean loss of the rows, without gradients."""
    import torch  # pyright: ignore[reportMissingImports]

    model.eval()
    with torch.no_grad():
        total = sum(float(_loss(model, batch)) * len(batch) for batch in batches)
    return total / sum(len(batch) for batch in batches)


def _loss(model: Any, rows: list[_Row]) -> Any:
    """The cross entropy of the answers' tokens. Padding is on the left, so that the answers are the last columns."""
    import torch  # pyright: ignore[reportMissingImports]

    width, count = max(len(row.ids) for row in rows), max(row.count for row in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), count), -100)
    for index, row in enumerate(rows):
        ids[index, -len(row.ids) :] = torch.tensor(row.ids)
        mask[index, -len(row.ids) :] = 1
        labels[index, -row.count :] = torch.tensor(row.ids[-row.count :])
    ids, mask, labels = (values.to(model.device) for values in (ids, mask, labels))
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=count + 1
    ).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

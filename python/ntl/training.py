"""Metrics of numbers during training with Hugging Face's Trainer. Needs transformers."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

from .client import Client
from .errors import NtlError
from .results import TargetScore
from .runs import log_run
from .server import serve

__all__ = ["NumberMetrics", "log_run"]

logger = logging.getLogger("ntl.training")
LOSSES = ("ce", "ntl-was")


class NumberMetrics(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Evaluates every saved checkpoint on a validation set, and logs the figures through the Trainer.

    After each save, it serves the checkpoint with ntl-server, requests the distribution and the losses of each target,
    and calls `trainer.log`, so that W&B, MLflow, TensorBoard and other loggers of the Trainer get the metrics at their
    step. Training waits. If a checkpoint cannot be evaluated, the logger `ntl.training` has a warning with the reason, and
    training continues.

        trainer.add_callback(NumberMetrics(trainer, prompts, targets))

    Parameters
    ----------
    trainer: the Trainer. It has to save the tokenizer too (its `processing_class`).
    prompts, targets: the validation set. Each target is the text of a number, as in training.
    losses: the losses of `/v1/score` to log.
    prefix: of the metrics' names.
    flags: of ntl-server. By default it computes on the CPU, since the training uses the GPU.
    server: the program; by default, `ntl-server` of the wheel or in the PATH.
    options: fields of the request's `number` object, such as `range`.
    """

    def __init__(
        self,
        trainer: Any,
        prompts: Sequence[str],
        targets: Sequence[str],
        *,
        losses: Sequence[str] = LOSSES,
        prefix: str = "eval_",
        flags: Sequence[str] = ("--device", "cpu"),
        server: str | None = None,
        **options: Any,
    ) -> None:
        if len(prompts) != len(targets):
            raise ValueError(f"there are {len(prompts)} prompts and {len(targets)} targets")
        if not prompts:
            raise ValueError("the validation set is empty")
        self.trainer = trainer
        self.prompts = list(prompts)
        self.targets = list(targets)
        self.numbers = [float(target) for target in targets]
        self.losses = list(losses)
        self.prefix = prefix
        self.flags = tuple(flags)
        self.server = server
        self.options = options

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        try:
            metrics = self.evaluate(checkpoint)
        except NtlError as error:
            logger.warning("%s could not be evaluated: %s", checkpoint, error)
            return
        self.trainer.log(metrics)

    def evaluate(self, checkpoint: str | os.PathLike[str]) -> dict[str, float]:
        """The metrics of a checkpoint."""
        with serve(f"checkpoint={os.fspath(checkpoint)}", *self.flags, server=self.server) as client:
            metrics = {**self._of_distributions(client), **self._of_losses(client)}
        return {f"{self.prefix}{name}": value for name, value in metrics.items()}

    def _of_distributions(self, client: Client) -> dict[str, float]:
        errors, scores, masses = [], [], []
        for found, number in zip(client.numbers(self.prompts, **self.options), self.numbers):
            masses.append(found.mass.closed)
            if found.value is not None and found.values:
                errors.append(abs(found.value - number))
                scores.append(found.crps(number))
        metrics = {"number_mass": _mean(masses), "number_missing": 1 - len(errors) / len(masses)}
        if errors:
            metrics["number_mae"] = _mean(errors)
            metrics["number_rmse"] = math.sqrt(_mean([error**2 for error in errors]))
            metrics["number_crps"] = _mean(scores)
        return metrics

    def _of_losses(self, client: Client) -> dict[str, float]:
        items = [{"prompt": prompt, "target": target} for prompt, target in zip(self.prompts, self.targets)]
        scores = client.score(items, losses=self.losses)
        metrics = {}
        for name in self.losses:
            values = [score.losses[name] for score in scores if isinstance(score, TargetScore)]
            finite = [value for value in values if isinstance(value, (int, float))]
            # An infinite loss has no mean that a logger could show.
            if len(finite) == len(values):
                metrics[name] = _mean(finite)
        return metrics


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

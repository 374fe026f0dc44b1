"""Writes finished runs of ntl-eval to Weights & Biases or MLflow."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import NtlError

REPORT = "report.json"
TRACKERS = ("wandb", "mlflow")
# MLflow rejects longer ones.
PARAMETER_CHARACTERS_MAX = 6000


@dataclass
class Tracked:
    """One run of a tracker: a model on a task. Names begin with the mode and the split (`regress/test/mae`)."""

    name: str
    config: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def log_run(folder: str | os.PathLike[str], to: str, *, project: str = "ntl-eval") -> list[str]:
    """Writes the reports in a run's directory and below to a tracker, as one run for each task and model.

    `to` is "wandb" or "mlflow", whose packages must be installed; they read their usual environment variables
    (`WANDB_MODE`, `MLFLOW_TRACKING_URI`). `project` is the project of W&B or the experiment of MLflow. Metrics have their
    confidence intervals as `NAME_low` and `NAME_high`. Returns the names of the runs.
    """
    if to not in TRACKERS:
        raise ValueError(f"to must be one of {', '.join(TRACKERS)}, not {to!r}")
    runs = read_runs(folder)
    try:
        tracker = importlib.import_module(to)
    except ImportError as error:
        raise ImportError(f"the package {to} is not installed: pip install {to}") from error
    for run in runs:
        if to == "wandb":
            _to_wandb(tracker, run, project)
        else:
            _to_mlflow(tracker, run, project)
    return [run.name for run in runs]


def read_runs(folder: str | os.PathLike[str]) -> list[Tracked]:
    """The reports in a directory, grouped by task and model."""
    paths = sorted(Path(folder).rglob(REPORT))
    if not paths:
        raise NtlError(f"{os.fspath(folder)} has no {REPORT}; name the directory of a finished run of ntl-eval")
    runs: dict[str, Tracked] = {}
    for path in paths:
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            task, model, mode, split = (str(report[name]) for name in ("task", "model", "mode", "split"))
            metrics: Mapping[str, Mapping[str, Any]] = report["metrics"]
            settings: Mapping[str, Any] = report["settings"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NtlError(f"{path} is not a report of ntl-eval: {error!r}") from error
        run = runs.setdefault(f"{task}, {model}", Tracked(f"{task}, {model}", {"task": task, "model": model}))
        part = f"{mode}/{split}"
        for name, value in settings.items():
            shown = value if isinstance(value, str) else json.dumps(value)
            run.config[f"{part}/{name}"] = shown[:PARAMETER_CHARACTERS_MAX]
        for name, figures in metrics.items():
            for suffix, bound in (("", "value"), ("_low", "low"), ("_high", "high")):
                _add(run.metrics, f"{part}/{name}{suffix}", figures.get(bound))
        for name in ("n", "n_valid", "failed", "seconds"):
            _add(run.metrics, f"{part}/{name}", report.get(name))
    return list(runs.values())


def _add(metrics: dict[str, float], name: str, value: Any) -> None:
    if isinstance(value, (int, float)) and math.isfinite(value):
        metrics[name] = float(value)


def _to_wandb(wandb: Any, run: Tracked, project: str) -> None:
    tracked = wandb.init(project=project, name=run.name, job_type="evaluation", config=run.config)
    tracked.log(run.metrics)
    tracked.finish()


def _to_mlflow(mlflow: Any, run: Tracked, project: str) -> None:
    mlflow.set_experiment(project)
    with mlflow.start_run(run_name=run.name):
        mlflow.log_params(run.config)
        mlflow.log_metrics(run.metrics)

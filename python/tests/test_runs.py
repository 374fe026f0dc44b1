import json
import os
import sys
from types import SimpleNamespace

import pytest

import ntl
from ntl.cli import main
from ntl.runs import read_runs


def report(folder, model, mode, split, **metrics):
    path = folder / model / mode / split
    path.mkdir(parents=True)
    body = {
        "task": "arithmetic", "model": model, "mode": mode, "split": split, "n": 10, "n_valid": 9, "failed": 0,
        "settings": {"limit": 10, "template": None, "data": "sums.txt", "request": {"max_tokens": 32}},
        "metrics": metrics, "seconds": 4.5,
    }  # fmt: skip
    (path / "report.json").write_text(json.dumps(body))


@pytest.fixture
def runs(tmp_path):
    report(tmp_path, "a", "text", "test", mae={"value": 2, "low": 1, "high": 3, "n": 9}, r2={"value": None, "n": 9})
    report(tmp_path, "a", "regress", "test", mae={"value": 1.5, "low": None, "high": None, "n": 9})
    report(tmp_path, "b", "text", "test", mae={"value": 7, "low": 5, "high": 9, "n": 9})
    return tmp_path


def test_reports_are_grouped_by_task_and_model(runs):
    first, second = read_runs(runs)
    assert (first.name, second.name) == ("arithmetic, a", "arithmetic, b")
    assert first.metrics["text/test/mae"] == 2 and first.metrics["text/test/mae_high"] == 3
    assert first.metrics["regress/test/mae"] == 1.5 and "regress/test/mae_low" not in first.metrics
    assert "text/test/r2" not in first.metrics and second.metrics["text/test/n_valid"] == 9
    assert first.config["text/test/request"] == '{"max_tokens": 32}' and first.config["text/test/data"] == "sums.txt"
    assert read_runs(runs / "b")[0].metrics == second.metrics


class Recorder:
    """Records the calls of a tracker's package."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, arguments, named))
            return self

        return call

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.append(("end_run", (), {}))


def test_each_tracker_gets_one_run_with_its_settings_and_metrics(runs, monkeypatch, capsys):
    run = read_runs(runs / "b")[0]
    wandb, mlflow = Recorder(), Recorder()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=wandb.init))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert ntl.log_run(runs / "b", to="wandb", project="p") == [run.name]
    assert wandb.calls == [
        ("init", (), {"project": "p", "name": run.name, "job_type": "evaluation", "config": run.config}),
        ("log", (run.metrics,), {}),
        ("finish", (), {}),
    ]
    assert main(["log", str(runs / "b"), "--to", "mlflow"]) == 0
    assert capsys.readouterr().out == "arithmetic, b\n"
    assert mlflow.calls == [
        ("set_experiment", ("ntl-eval",), {}),
        ("start_run", (), {"run_name": run.name}),
        ("log_params", (run.config,), {}),
        ("log_metrics", (run.metrics,), {}),
        ("end_run", (), {}),
    ]


def test_a_real_mlflow_keeps_the_metrics(runs, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((runs / "tracked").as_uri())
    ntl.log_run(runs, to="mlflow", project="p")
    client = mlflow.MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    kept = {run.info.run_name: run.data for run in found}
    assert kept["arithmetic, a"].metrics["regress/test/mae"] == 1.5
    assert kept["arithmetic, b"].params["text/test/limit"] == "10"


def test_a_real_wandb_writes_an_offline_run(runs, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(runs))
    ntl.log_run(runs / "b", to="wandb", project="p")
    files = [path for path in (runs / "wandb").rglob("*.wandb") if os.path.getsize(path) > 0]
    assert len(files) == 1 and b"text/test/mae" in files[0].read_bytes()


def test_problems_are_named(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match="pip install mlflow"):
        ntl.log_run(runs, to="mlflow")
    with pytest.raises(ValueError, match="wandb, mlflow"):
        ntl.log_run(runs, to="comet")
    (tmp_path / "empty").mkdir()
    assert main(["log", str(tmp_path / "empty"), "--to", "wandb"]) == 1
    assert "has no report.json" in capsys.readouterr().err
    (tmp_path / "empty" / "report.json").write_text("[]")
    with pytest.raises(ntl.NtlError, match="empty.report.json is not a report"):
        ntl.log_run(tmp_path / "empty", to="wandb")

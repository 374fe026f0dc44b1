import json
import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

try:
    import transformers  # noqa: F401
except ImportError:
    # The callback needs only its base class, and the package takes minutes to install.
    sys.modules["transformers"] = SimpleNamespace(TrainerCallback=type("TrainerCallback", (), {}))

import ntl
import ntl.training

REFERENCE = Path(__file__).parents[2] / "models/tests/data/reference/t5-ntl-was"


class Trainer:
    """The parts of Hugging Face's Trainer that a callback uses."""

    def __init__(self, folder):
        self.args = SimpleNamespace(output_dir=str(folder))
        self.state = SimpleNamespace(global_step=7, is_world_process_zero=True)
        self.logged = []
        self.callbacks = []

    def log(self, metrics):
        self.logged.append(metrics)

    def save(self):
        for callback in self.callbacks:
            callback.on_save(self.args, self.state, SimpleNamespace(), model=None, processing_class=None)


def sums_model(request):
    """A model that writes 2 or 4 after each prompt, and no number after `?`."""
    body = json.loads(request.content)
    if request.url.path == "/v1/score":
        items = [{"tokens": [], "token_logprobs": [], "number_values": [], "number_mass": [], "total": 1, "perplexity": 1,
                  "losses": {"ce": len(item["target"]), "ntl-was": None}} for item in body["items"]]  # fmt: skip
        return httpx.Response(200, json={"data": items})
    support = [{"value": value, "probability": 0.45} for value in (2, 4)]
    number = {"value": 3, "support": support, "mass": {"closed": 0.9, "invalid": 0.1, "open": 0}}
    if body["prompt"] == "?":
        number = {"value": None, "support": [], "mass": {"closed": 0, "invalid": 1, "open": 0}}
    return httpx.Response(200, json={"choices": [{"text": "", "number": number}]})


def test_metrics_of_a_saved_checkpoint_are_logged_through_the_trainer(tmp_path, monkeypatch):
    served = []

    @contextmanager
    def serve(model, *flags, server):
        served.append((model, flags))
        yield ntl.Client("http://server", transport=httpx.MockTransport(sums_model))

    monkeypatch.setattr(ntl.training, "serve", serve)
    trainer = Trainer(tmp_path)
    trainer.callbacks.append(ntl.training.NumberMetrics(trainer, ["1 + 1 =", "2 + 2 =", "?"], ["2", "5", "10"]))
    trainer.save()
    assert served == [(f"checkpoint={tmp_path}/checkpoint-7", ("--device", "cpu"))]
    (metrics,) = trainer.logged
    assert metrics == pytest.approx({
        "eval_number_mass": 0.6,
        "eval_number_missing": 1 / 3,
        "eval_number_mae": 1.5,
        "eval_number_rmse": 2.5**0.5,
        # E|X - y| - E|X - X'| / 2 is 1 - 0.5 and 2 - 0.5.
        "eval_number_crps": 1,
        "eval_ce": 4 / 3,
    })  # fmt: skip
    trainer.state.is_world_process_zero = False
    trainer.save()
    assert len(served) == 1


def test_a_checkpoint_that_cannot_be_served_is_a_warning(tmp_path, monkeypatch, caplog):
    def serve(*_, **__):
        raise ntl.ServerFailed("there is no tokenizer")

    monkeypatch.setattr(ntl.training, "serve", serve)
    trainer = Trainer(tmp_path)
    trainer.callbacks.append(ntl.training.NumberMetrics(trainer, ["1 + 1 ="], ["2"]))
    with caplog.at_level(logging.WARNING, "ntl.training"):
        trainer.save()
    assert trainer.logged == [] and "there is no tokenizer" in caplog.text


def test_unusable_validation_sets_are_named(tmp_path):
    for prompts, targets, problem in [(["a"], [], "1 prompts and 0"), ([], [], "empty"), (["a"], ["two"], "two")]:
        with pytest.raises(ValueError, match=problem):
            ntl.training.NumberMetrics(Trainer(tmp_path), prompts, targets)


def test_a_real_checkpoint_is_served_and_evaluated(client, tmp_path):
    trainer = Trainer(tmp_path)
    (tmp_path / "checkpoint-7").symlink_to(REFERENCE)
    sums = {"What is 1 + 1?": "2", "What is -17 + 4?": "-13", "What is 336 - -20?": "356"}
    program = os.environ["NTL_SERVER"]
    callback = ntl.training.NumberMetrics(trainer, list(sums), list(sums.values()), server=program, objective="mode")
    trainer.callbacks.append(callback)
    trainer.save()
    (metrics,) = trainer.logged
    names = {"number_mass", "number_missing", "number_mae", "number_rmse", "number_crps", "ce", "ntl-was"}
    assert set(metrics) == {f"eval_{name}" for name in names}
    assert metrics["eval_number_missing"] == 0 and metrics["eval_number_mass"] > 0.9
    assert metrics["eval_number_mae"] == 0

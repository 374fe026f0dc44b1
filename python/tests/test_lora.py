import json
import random
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from test_fit import Lengths

import ntl
from ntl import _lora, fitting
from ntl._lora import Lora, LoraRegressor
from ntl.cli import main

# A decoder of half a million parameters that has learnt sums and differences.
BASE = Path(__file__).parents[2] / "models/tests/data/reference/llama-ntl"
TEMPLATE = "Q: {text} A:"


@pytest.fixture
def torch():
    pytest.importorskip("peft", reason="training needs torch, transformers and peft")
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    # Threads of small tensors wait for each other.
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


@pytest.fixture
def server(monkeypatch):
    """A server of the merged model for `fit` without a training. `trained` has the pairs of each training."""
    server = Lengths()
    server.trained = []

    def prepare(lora, pairs, seed, progress):
        server.trained.append(pairs)
        for folder in (lora.adapter, lora.model):
            folder.mkdir(exist_ok=True)

    @contextmanager
    def serve(model, server=None):
        assert Path(model).is_dir()
        yield served.client()

    served = server
    monkeypatch.setattr(fitting, "check_base", lambda base: None)
    monkeypatch.setattr(Lora, "prepare", prepare)
    monkeypatch.setattr(_lora, "serve", serve)
    return server


def write_letters(path):
    """100 rows whose number is the length of the text, which its words do not say."""
    random.seed(5)
    texts = ["".join(random.choice("abcdefghij") for _ in range(random.randrange(1, 60))) for _ in range(100)]
    path.write_text("\n".join(["TEXT,PRICE", *(f"{text},{len(text)}" for text in texts)]) + "\n")
    return texts


def write_sums(path):
    """60 rows with sums. Most of their words are new, so a regression on words has little to learn from."""
    random.seed(5)
    pairs = [(random.randrange(100, 450), random.randrange(100, 450)) for _ in range(60)]
    path.write_text("\n".join(["TEXT,PRICE", *(f"What is {a} + {b}?,{a + b}" for a, b in pairs)]) + "\n")


def fit(folder, **options):
    return ntl.fit(folder / "rows.csv", text="TEXT", target="PRICE", out=folder / "out", lora=BASE, **options)


def test_the_training_never_reads_rows_that_choose_calibrate_or_are_held_out(tmp_path, server, monkeypatch):
    texts = write_letters(tmp_path / "rows.csv")
    calibrating = []
    offset = LoraRegressor._offset
    monkeypatch.setattr(LoraRegressor, "_offset", lambda *args: calibrating.extend(args[1]) or offset(*args))
    fit(tmp_path, seed=3)
    order = list(range(100))
    random.Random(3).shuffle(order)
    held_out, learn = order[:20], order[40:]
    trial, final = ({pair[0] for pair in pairs} for pairs in server.trained)
    assert trial == {f"{texts[index]}\n=" for index in learn}
    rows = {f"{texts[index]}\n=" for index in order}
    assert len(final) == 64 and len(calibrating) == 16
    assert final == rows - set(calibrating) - {f"{texts[index]}\n=" for index in held_out}
    assert all(answer == f" {len(prompt) - 2}\n" for pairs in server.trained for prompt, answer in pairs)


def test_an_adapter_that_is_better_is_kept_for_a_server_of_the_merged_model(tmp_path, server):
    write_letters(tmp_path / "rows.csv")
    found = fit(tmp_path)
    assert found.beats_baseline and found.kind == "lora" and list(found.estimator.predict(["abc"])) == [3]
    folder = tmp_path / "out"
    assert "**Kept: llama-ntl, LoRA.**" in found.report and f"`ntl-server --model {folder}/model`" in found.report
    assert (folder / "prompt.txt").read_text().endswith("\n=") and (folder / "model").is_dir()
    loaded = ntl.load(folder, server.client())
    assert loaded.predict_interval(["abc"]).tolist() == found.estimator.predict_interval(["abc"]).tolist()
    server.fingerprint = "beef"
    with pytest.raises(ntl.NtlError, match=r"a server of .*out/model, lengths .f00d., and the server has .* .beef."):
        ntl.load(folder, server.client())


def test_an_adapter_that_is_worse_is_not_kept_and_the_report_says_by_how_much(tmp_path, server):
    write_letters(tmp_path / "rows.csv")
    server.error = 100
    found = fit(tmp_path)
    assert not found.beats_baseline and "The best one, llama-ntl, LoRA, has a CRPS of" in found.report
    # A later call trains neither adapter again.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "adapter", "fit.json", "report.md", "responses.sqlite", "trial-adapter",
    ]  # fmt: skip


def test_without_its_packages_the_error_names_them_and_the_extra(tmp_path, monkeypatch, capsys):
    write_letters(tmp_path / "rows.csv")
    monkeypatch.setitem(sys.modules, "torch", None)
    arguments = f"fit {tmp_path}/rows.csv --text TEXT --target PRICE --out {tmp_path}/out --lora {BASE}"
    assert main(arguments.split()) == 1
    assert "needs torch, transformers and peft: pip install 'ntl-server[lora]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_directory_without_a_decoder_is_an_error(tmp_path, torch):
    with pytest.raises(ntl.NtlError, match=r"has no config.json"):
        ntl.fit("rows.csv", text="a", target="b", out=tmp_path / "out", lora=tmp_path)


def test_the_loss_is_the_mean_over_the_tokens_of_the_answers(torch):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(BASE)
    pairs = [("Q: What is 3 + 4? A:", " 7\n"), ("Q: What is 33 + 41? A:", " 74\n"), ("A:", " -1.25\n")]
    rows = _lora._rows(BASE, pairs, 1024)
    assert [row.count for row in rows] == [3, 4, 6]
    total = 0.0
    for row in rows:
        ids = torch.tensor([row.ids])
        labels = ids.clone()
        labels[0, : -row.count] = -100
        total += float(model(input_ids=ids, labels=labels).loss.detach()) * row.count
    assert float(_lora._loss(model, rows).detach()) == pytest.approx(total / 13, rel=1e-4)
    assert _lora._rows(BASE, pairs[:1], 5)[0].ids == rows[0].ids[-5:]


def test_a_trained_adapter_follows_the_rows(tmp_path, torch, program, monkeypatch):
    # So small a model learns in many steps.
    monkeypatch.setattr(_lora, "EPOCHS_MAX", 20)
    monkeypatch.setattr(_lora, "LEARNING_RATE", 5e-3)
    prices = {"lamp": 20, "sofa": 70}
    texts = [f"{word} {index}" for index in range(11, 41) for word in prices]
    model = LoraRegressor(examples=0, calibration=0, template=TEMPLATE)
    model.lora = Lora(BASE, tmp_path / "adapter", tmp_path / "model", program)
    model.fit(texts, [prices[text[:4]] for text in texts])
    losses = json.loads((tmp_path / "adapter" / "training.json").read_text())["losses"]
    assert min(losses) < 0.1 * losses[0]
    assert model.predict(["lamp 18", "sofa 41"]) == pytest.approx([20, 70], abs=5)


def test_an_adapter_that_wins_is_served_with_its_calibration_and_trained_once(tmp_path, torch, program, monkeypatch):
    write_sums(tmp_path / "rows.csv")
    options = {"server": program, "template": TEMPLATE, "options": {"tolerance": 0.05}}
    found = fit(tmp_path, **options)
    folder = tmp_path / "out"
    assert found.kind == "lora"
    assert found.figures["llama-ntl, LoRA"].crps < 0.5 * found.figures["TF-IDF ridge"].crps
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    command = next(line for line in found.report.splitlines() if "ntl-server --model" in line).split("`")[1]
    texts = ["What is 210 + 341?", "What is 111 + 122?"]
    with ntl.serve(shlex.split(command)[-1], server=program) as client:
        loaded = ntl.load(folder, client)
        assert loaded.predict_interval(texts).tolist() == found.estimator.predict_interval(texts).tolist()
    # A second call does not train, and another seed does.
    monkeypatch.setattr(_lora, "_train", None)
    assert fit(tmp_path, **options).report == found.report
    with pytest.raises(TypeError):
        fit(tmp_path, **options, seed=1)

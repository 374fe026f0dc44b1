"""Training: what a loss covers, resumption, and one clear line for bad input."""

import gzip
import json
import random
import re

import pytest
import torch
from safetensors.torch import load_file
from transformers import T5ForConditionalGeneration

import train
from conftest import ROWS, SMALL, small_model
from data import read
from generated import GeneratedQuestions, held_out, sum_question
from kinds import KINDS
from objectives import Objective


@pytest.mark.parametrize("name", ["t5", "t5-rt", "llama"])
@pytest.mark.parametrize("objective", ["ce", "ntl-was", "ntl-mse"])
def test_padding_adds_nothing_to_a_loss(name, objective):
    if not KINDS[name].takes_number_loss and objective != "ce":
        pytest.skip("RT is trained with cross entropy")
    kind, (model, tokenizer) = KINDS[name], small_model(name)
    loss = Objective(objective, 0.3, tokenizer, model.config.vocab_size)
    rows = [kind.collate(tokenizer, 32, [row]) for row in ROWS]
    weights = {"token_loss": [], "number_loss": []}
    parts = []
    for row in rows:
        labels = row["labels"]
        weights["token_loss"].append((labels != -100).sum().item())
        digits = [tokenizer.get_vocab()[digit] for digit in "0123456789"] if name != "t5-rt" else []
        weights["number_loss"].append(torch.isin(labels, torch.tensor(digits)).sum().item() if digits else 0)
        parts.append(kind.loss(model, dict(row), loss)[1])
    together = kind.loss(model, kind.collate(tokenizer, 32, ROWS), loss)[1]
    for name, value in together.items():
        want = sum(w * part[name].item() for w, part in zip(weights[name], parts)) / sum(weights[name])
        assert value.item() == pytest.approx(want, rel=1e-4), name


def test_left_padding_does_not_change_a_regression_head():
    kind, (model, tokenizer) = KINDS["llama-regression-head"], small_model("llama-regression-head")
    together, alone = kind.collate(tokenizer, 32, ROWS), [kind.collate(tokenizer, 32, [row]) for row in ROWS]
    assert together.pop("labels").tolist() == [3.0, 210.0, 15.5]
    values = [kind.values(model, {name: row[name] for name in row if name != "labels"}).item() for row in alone]
    assert kind.values(model, together).tolist() == pytest.approx(values, rel=1e-4)


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_no_position_sees_the_label_that_it_predicts(name):
    kind, (model, tokenizer) = KINDS[name], small_model(name)
    seen = []

    def objective(logits, labels):
        seen.append((logits, labels))
        return logits.sum(), {}

    for answer in ("123", "129"):
        kind.loss(model, kind.collate(tokenizer, 32, [{"question": "What is 5?", "answer": answer}]), objective)
    (first, labels), (second, other) = seen
    changed = (labels != other)[0].nonzero()[0].item()
    assert torch.allclose(first[:, : changed + 1], second[:, : changed + 1], atol=1e-6)
    assert not torch.allclose(first[:, changed + 1], second[:, changed + 1], atol=1e-6)


def test_a_stopped_run_resumes_and_ends_like_an_uninterrupted_one(tmp_path):
    common = ["--dataset", "demo", "--tokenizer", "words", "--save-every", "4", "--warmup", "2", *SMALL.split()]
    assert train.main([*common, "--max-steps", "8", "--output", str(tmp_path / "whole")]) == 0
    assert train.main([*common, "--max-steps", "8", "--minutes", "1e-9", "--output", str(tmp_path / "parts")]) == 0
    first = json.loads((tmp_path / "parts/training.json").read_text())
    state = json.loads((tmp_path / "parts/checkpoints/checkpoint-1/trainer_state.json").read_text())
    assert state["global_step"] == 1
    assert train.main([*common, "--max-steps", "8", "--output", str(tmp_path / "parts")]) == 0
    record = json.loads((tmp_path / "parts/training.json").read_text())
    assert (record["steps"], record["objective"], record["batch"]) == (8, "ce", 4)
    assert (first["steps"], first["seconds"] < record["seconds"]) == (1, True)
    assert record["parameters"] == sum(p.numel() for p in T5ForConditionalGeneration.from_pretrained(tmp_path / "parts").parameters())
    again = (tmp_path / "parts/model.safetensors").stat().st_mtime_ns
    assert train.main([*common, "--max-steps", "8", "--output", str(tmp_path / "parts")]) == 0
    assert (tmp_path / "parts/model.safetensors").stat().st_mtime_ns == again, "a finished run is left alone"
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    for name, tensor in whole.items():
        assert torch.allclose(tensor, parts[name], atol=1e-6), name


@pytest.mark.parametrize("name", KINDS)
def test_a_long_question_keeps_its_first_tokens_and_ntl_json_records_the_side(tmp_path, name):
    kind, (model, tokenizer) = KINDS[name], small_model(name)
    row = {"question": "What is 1 + 2 and what is 3 + 4 and what is 5 + 6?", "answer": "3"}
    whole, cut = (kind.collate(tokenizer, length, [row])["input_ids"][0].tolist() for length in (100, 6))
    if name.startswith("llama"):
        assert cut[:6] == whole[:6] and len(whole) > len(cut)
    else:
        assert cut == [*whole[:5], tokenizer.eos_token_id] and len(whole) > 6
    run = ["--dataset", "demo", "--tokenizer", "words", "--kind", name, "--max-steps", "1", "--output", str(tmp_path), *SMALL.split()]
    assert train.main(run) == 0
    assert json.loads((tmp_path / "ntl.json").read_text())["truncation_side"] == "right"


@pytest.mark.parametrize("tokenizer, file", [("words", "tokenizer.json"), ("spiece", "spiece.model")])
def test_a_resumed_run_keeps_its_tokenizer_when_the_data_has_changed(tmp_path, tokenizer, file):
    questions, output = tmp_path / "train.txt", tmp_path / "out"
    run = ["--dataset", "arithmetic", "--tokenizer", tokenizer, "--train", str(questions), "--output", str(output), *SMALL.split()]
    questions.write_text("What is 1 + 2?\n3\n" * 20)
    assert train.main([*run, "--max-steps", "1"]) == 0
    before = (output / file).read_bytes()
    questions.write_text("Please subtract seven hundred from 12.\n-688\n" * 20)
    assert train.main([*run, "--max-steps", "2"]) == 0
    assert (output / file).read_bytes() == before


@pytest.mark.parametrize(
    "files, arguments, want",
    [
        ({}, [], "needs the files to train on"),
        ({}, ["--train", "missing.txt"], "missing.txt: no such file"),
        ({"a.csv": "1"}, ["--train", "a.csv"], "the name must end in"),
        ({"a.txt": "What is 1?"}, ["--train", "a.txt"], "the last question has no answer"),
        ({"a.txt": ""}, ["--train", "a.txt"], "no questions"),
        ({"a.jsonl": '{"question": "x"}'}, ["--train", "a.jsonl"], "a.jsonl, line 1: no text in the field `answer`"),
        ({"a.jsonl": "x"}, ["--train", "a.jsonl"], "a.jsonl, line 1: not JSON"),
        ({"a.tsv": "3 joke"}, ["--train", "a.tsv"], "a.tsv, line 1: no tab"),
        ({"a.txt": "q\n" + "1" * 50}, ["--train", "a.txt"], "answer 1 has 5"),
        ({"a.txt": "q\n1\nr\nnone"}, ["--train", "a.txt", "--kind", "t5-regression-head"], "answer 2 is not a number"),
        ({"a.txt": "q\n1"}, ["--train", "a.txt", "--kind", "t5-rt", "--objective", "ntl-was"], "omit --objective"),
        ({"a.txt": "q\n1"}, ["--train", "a.txt", "--heads", "3"], "not a multiple of --heads 3"),
        ({"a.txt": "q\n1"}, ["--train", "a.txt", "--model", "nowhere"], "nowhere: no such folder"),
        ({"a.txt": "q\n1"}, ["--train", "a.txt", "--kind", "llama", "--freeze", "1"], "--freeze needs --model"),
        ({"a.txt": "q\n1"}, ["--train", "a.txt", "--kind", "t5-xval", "--max-length", "600"], "at most 512 tokens"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, files, arguments, want):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    result = train.main(["--dataset", "arithmetic", "--tokenizer", "words", "--output", "out", *SMALL.split(), *arguments])
    errors = capsys.readouterr().err
    assert (result, errors.count("\n")) == (1, 1), errors
    assert want in errors


def test_files_of_all_formats_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("What is 1?\n1\n")
    (tmp_path / "a.jsonl").write_text('{"question": "What is 1?", "answer": "1", "more": 2}\n')
    with gzip.open(tmp_path / "a.tsv.gz", "wt") as file:
        file.write("1\tWhat is 1?\n")
    for name in ("a.txt", "a.jsonl", "a.tsv.gz"):
        assert read(tmp_path / name) == [{"question": "What is 1?", "answer": "1"}], name


def test_demo_questions_depend_only_on_seed_and_index_and_hold_pairs_out():
    train_split, again = GeneratedQuestions(10_000, seed=3), GeneratedQuestions(10_000, seed=3)
    assert train_split[7000] == again[7000]
    assert train_split[0] != GeneratedQuestions(10_000, seed=4)[0]
    rng = random.Random(5)
    for _ in range(200):
        question, answer = sum_question(rng, "test")
        assert len(answer.lstrip("-").replace(".", "")) <= 4 and float(answer) is not None, question
    assert held_out(30, -20) == held_out(20, 30)
    share = sum(held_out(p, q) for p in range(0, 1000, 10) for q in range(0, 1000, 10)) / 10_000
    assert 0.03 < share < 0.07


@pytest.mark.parametrize("task", ["sums", "long_sums", "longer_sums"])
def test_answers_of_sums_are_correct(task):
    sums = GeneratedQuestions(3000, tasks={task: 1})
    for index in range(3000):
        row = sums[index]
        if " - " in row["question"] and row["question"].startswith("What is"):
            p, q = row["question"][8:-1].split(" - ", 1)
            assert float(row["answer"]) == pytest.approx(float(p) - float(q)), row


def test_chains_have_two_or_three_integers_and_the_value_that_python_finds():
    chains = GeneratedQuestions(2000, tasks={"chains": 1})
    for index in range(2000):
        row = chains[index]
        chain = re.search(r"[-(\d].*[\d)]", row["question"])[0]
        assert len(re.findall(r"\d+", chain)) in (2, 3) and eval(chain) == int(row["answer"]), row

"""lm-evaluation-harness over HTTP on local tasks, unmodified: the tokenizer is the server's. `run` installs it with the
other requirements and names it in NTL_LM_EVAL; without that the tests are skipped."""

import json
import os
import subprocess

import httpx
import pytest

from conftest import KEY

ITEMS = [("What is 336 - -20?", "356"), ("What is 12 + 7?", "19"), ("What is 5 + 6?", "11"), ("What is 40 - 3?", "37")]

GENERATE = """
task: ntl_arithmetic
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8, do_sample: false, temperature: 0.0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""

CHOOSE = """
task: ntl_arithmetic
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: "{{{{[answer, '8', '512']}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def evaluate(server, model, task, folder, **arguments):
    """Results and samples of a task over the items."""
    program = os.environ.get("NTL_LM_EVAL")
    if not program:
        pytest.skip("NTL_LM_EVAL is not set")
    data = folder / "items.jsonl"
    data.write_text("".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in ITEMS))
    (folder / "task.yaml").write_text(task.format(data=data))
    arguments = {"model": model, "base_url": f"{server.url}/v1/completions", "num_concurrent": 4, **arguments}
    command = [
        program, "run", "--model", "local-completions", "--include_path", str(folder), "--tasks", "ntl_arithmetic",
        "--model_args", ",".join(f"{name}={value}" for name, value in arguments.items()),
        "--output_path", str(folder / "out"), "--log_samples",
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": KEY}
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | offline, timeout=600)
    assert run.returncode == 0, (run.stdout + run.stderr)[-5000:]
    (results,), (samples,) = (list((folder / "out").rglob(name)) for name in ("results_*.json", "samples_*.jsonl"))
    scores = json.loads(results.read_text())["results"]["ntl_arithmetic"]
    return scores, [json.loads(line) for line in samples.read_text().splitlines()]


@pytest.mark.parametrize(
    "tokenizer", [{"auth_token": KEY}, {"tokenizer_backend": "None", "tokenized_requests": False}], ids=["remote", "none"]
)
def test_lm_eval_generates_on_a_local_task(server, tmp_path, report, tokenizer):
    scores, samples = evaluate(server, "t5-ntl-was", GENERATE, tmp_path, **tokenizer)
    report(generated=[sample["filtered_resps"][0] for sample in samples], exact_match=scores["exact_match,none"])
    assert len(samples) == len(ITEMS)
    # The demo subtracts this one; what it makes of the others is its own affair.
    assert [sample["filtered_resps"] for sample in samples if sample["doc"]["answer"] == "356"] == [["356"]]


def test_lm_eval_reads_the_log_likelihoods_that_the_server_scores(chatting, tmp_path, report):
    scores, samples = evaluate(chatting, "llama", CHOOSE, tmp_path, auth_token=KEY)
    ask = httpx.Client(base_url=chatting.url, headers={"authorization": f"Bearer {KEY}"})

    def ids(text):
        return ask.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]

    def item(question, choice):
        # lm-eval puts a space between them, tokenizes both together and adds no special tokens.
        prompt = ids(question)
        return {"prompt": prompt, "target": ids(f"{question} {choice}")[len(prompt) :]}

    worst = 0
    for sample in samples:
        question, answer = sample["doc"]["question"], sample["doc"]["answer"]
        items = [item(question, choice) for choice in (answer, "8", "512")]
        scored = ask.post("/v1/score", json={"items": items, "add_eos": False}).json()
        wanted = [sum(one["token_logprobs"]) for one in scored["data"]]
        # Each answer is logged with the log-likelihood and whether it is the greedy one.
        got = [float(answers[0]) for answers in sample["filtered_resps"]]
        worst = max(worst, *(abs(a - b) for a, b in zip(got, wanted, strict=True)))
    report(acc=scores["acc,none"], log_likelihoods=3 * len(samples), worst_difference=worst)
    assert len(samples) == len(ITEMS) and worst < 1e-4

"""lm-evaluation-harness generates over HTTP on a local task. It is large, so it is not among the requirements: the test
is skipped unless NTL_LM_EVAL names its program (`pip install "lm_eval[api]"` in an environment of its own)."""

import json
import os
import subprocess

import pytest

ITEMS = [("What is 336 - -20?", "356"), ("What is 12 + 7?", "19"), ("What is 5 + 6?", "11"), ("What is 40 - 3?", "37")]

TASK = """
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


def test_lm_eval_generates_on_a_local_task(start, tmp_path, report):
    program = os.environ.get("NTL_LM_EVAL")
    if not program:
        pytest.skip('NTL_LM_EVAL is not set (`pip install "lm_eval[api]"`; it is large)')
    server = start()
    data = tmp_path / "items.jsonl"
    data.write_text("".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in ITEMS))
    (tmp_path / "task.yaml").write_text(TASK.format(data=data))
    arguments = (
        f"model=t5-ntl-was,base_url={server.url}/v1/completions,num_concurrent=4,tokenized_requests=False,"
        "tokenizer_backend=None"
    )
    command = [program, "run", "--model", "local-completions", "--model_args", arguments, "--include_path", str(tmp_path),
               "--tasks", "ntl_arithmetic", "--output_path", str(tmp_path / "out"), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | offline, timeout=600)
    assert run.returncode == 0, (run.stdout + run.stderr)[-5000:]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]["ntl_arithmetic"]
    report(exact_match=scores["exact_match,none"], items=len(ITEMS))
    # The demo subtracts this one; what it makes of the others is its own affair.
    assert scores["exact_match,none"] >= 0.25

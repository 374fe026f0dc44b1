"""The task group in the real lm-evaluation-harness, with its `local-completions`, has the same scores as `ntl-eval` on the same files.

NTL_EVAL is the path of `ntl-eval` (default: next to NTL_SERVER)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY
from ntl.integrations.lm_eval import TASKS as GROUP
from served import Server

EVAL = Path(os.environ.get("NTL_EVAL", Path(os.environ["NTL_SERVER"]).with_name("ntl-eval")))
REVIEWS = REPOSITORY / "server/demo/reviews.jsonl"
ITEMS = 60
# For each of our tasks: the corresponding task of ntl-eval, its flags, and the names of each metric in both
# programs.
NUMBERS = {"accuracy,none": "accuracy", "mae,none": "mae", "rmse,none": "rmse", "unparsed,none": "unparsed"}
EXACT = {"exact_match,strict-match": "strict", "exact_match,flexible-extract": "flexible"}
TASKS = {
    "ntl_arithmetic_interpolate": (["arithmetic", "--split", "interpolate"], NUMBERS),
    "ntl_arithmetic_extrapolate": (["arithmetic", "--split", "extrapolate"], NUMBERS),
    "ntl_rjokes": (["rjokes"], NUMBERS),
    "ntl_gsm8k": (["gsm8k", "--shots", "5"], EXACT),
}
pytestmark = pytest.mark.skipif(not EVAL.is_file(), reason=f"there is no {EVAL}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Returns ntl-eval's data cache: generated arithmetic problems, the demo's reviews as jokes, and GSM8K-like questions."""
    cache = tmp_path_factory.mktemp("data")
    subprocess.run([EVAL, "data", "arithmetic", "--dir", cache / "arithmetic"], check=True, capture_output=True)
    reviews = [json.loads(line) for line in REVIEWS.read_text().splitlines()]
    write(cache / "rjokes/test.tsv", (f"{review['answer']}\t{review['question']}" for review in reviews))
    for name, count in (("test", ITEMS), ("train", 40)):
        sums = ((place % 23, place % 7) for place in range(count))
        solved = ((f"What is {a} and {b}?", f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}.\n#### {a + b}") for a, b in sums)
        lines = (json.dumps({"question": question, "answer": answer}) for question, answer in solved)
        write(cache / f"gsm8k/{name}.jsonl", lines)
    return cache


def write(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def demo():
    with Server() as server:
        yield server


def run(command, **environment):
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=os.environ | environment)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-5000:]


def by_lm_eval(url, model, tasks, cache, out):
    """Returns the results of the tasks, and their samples."""
    arguments = {"model": model, "base_url": f"{url}/v1/completions", "num_concurrent": 4}
    command = [
        sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", tasks, "--limit", ITEMS,
        "--model_args", ",".join(f"{name}={value}" for name, value in arguments.items()),
        "--include_path", GROUP, "--output_path", out, "--log_samples",
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(out / "hf"), "OPENAI_API_KEY": "-"}
    run(command, NTL_EVAL_DATA_CACHE=str(cache), **offline)
    (results,) = out.rglob("results_*.json")
    samples = {path.name.removeprefix("samples_").split("_2")[0]: path.read_text() for path in out.rglob("samples_*.jsonl")}
    return json.loads(results.read_text())["results"], samples


def by_program(url, cache, home, **arguments):
    """Runs GSM8K with 20 solved questions, which are more than 512 tokens, by the program of the adapter."""
    arguments = {"model": "t5-ntl-was", "base_url": f"{url}/v1/completions", "num_concurrent": 2, **arguments}
    command = [
        sys.executable, "-m", "ntl.integrations.lm_eval", "run", "--tasks", "ntl_gsm8k", "--num_fewshot", "20", "--limit", "2",
        "--model_args", ",".join(f"{name}={value}" for name, value in arguments.items()),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(home), "OPENAI_API_KEY": "-"}
    environment = os.environ | offline | {"NTL_EVAL_DATA_CACHE": str(cache)}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)


def test_the_program_takes_the_length_of_prompts_from_the_server(demo, cache, tmp_path):
    ended = by_program(demo.url, cache, tmp_path)
    assert ended.returncode == 0, ended.stderr[-5000:]


def test_the_program_reports_a_rejected_request_in_words(demo, cache, tmp_path):
    ended = by_program(demo.url, cache, tmp_path, max_length=4096)
    _, found, after = ended.stderr.rpartition("\nerror: the server returned 400: prompt has ")
    assert ended.returncode == 1 and found and "Traceback" not in after, ended.stderr[-5000:]


def by_ntl_eval(url, arguments, cache, out):
    """Returns the metrics of a run in text mode, and its samples."""
    run([EVAL, *arguments, "--endpoint", url, "--mode", "text", "--limit", ITEMS, "--out", out], NTL_EVAL_DATA_CACHE=str(cache))
    return json.loads((out / "report.json").read_text())["metrics"], (out / "samples.jsonl").read_text()


def prompts(samples):
    """Returns the prompts, by item. Both programs write the same columns."""
    rows = map(json.loads, samples.splitlines())
    return {row["doc_id"]: row["arguments"]["gen_args_0"]["arg_0"] for row in rows}


def assert_same(url, results, samples, cache, folder):
    """Asserts that prompts and scores of the tasks in `results` equal those of ntl-eval."""
    for task in results.keys() & TASKS.keys():
        arguments, names = TASKS[task]
        metrics, items = by_ntl_eval(url, arguments, cache, folder / task)
        assert prompts(samples[task]) == prompts(items) and len(prompts(items)) == ITEMS
        wanted = {name: pytest.approx(metrics[other]["value"], rel=1e-12) for name, other in names.items()}
        assert {name: results[task][name] for name in names} == wanted


def test_the_group_has_the_scores_of_ntl_eval(demo, cache, tmp_path, report):
    results, samples = by_lm_eval(demo.url, "t5-ntl-was", "ntl", cache, tmp_path / "out")
    assert results.keys() == {"ntl", *TASKS}
    for task, (_, names) in TASKS.items():
        report(f"{task}: {({name: round(results[task][name], 4) for name in names})}")
    assert_same(demo.url, results, samples, cache, tmp_path)
    assert results["ntl_rjokes"]["accuracy,none"] > 0


def test_solutions_of_gsm8k_are_read_by_both_filters(serve, cache, tmp_path):
    # After "Answer:", the model always writes the same solution, which is correct for a few of the questions.
    url = serve(solver={":": {" 5 + 6 = 11.\n#### 11": 1.0}}).removesuffix("/v1")
    results, samples = by_lm_eval(url, "solver", "ntl_gsm8k", cache, tmp_path / "out")
    assert_same(url, results, samples, cache, tmp_path)
    right = sum(place % 23 + place % 7 == 11 for place in range(ITEMS)) / ITEMS
    assert results["ntl_gsm8k"]["exact_match,strict-match"] == pytest.approx(right) and right > 0

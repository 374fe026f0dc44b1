"""Lets lm-evaluation-harness answer GSM8K with the prompt of gsm8k.py, and compares its scores with the kept ones: see lab/results/gsm8k.md.

    gsm8k_lm_eval.py DATA ENDPOINT RUN ANSWERS/NAME-text.jsonl.gz --limit N

The task is lm-eval's own gsm8k, with local files and with three examples in the text of the prompt. Prints a row of Markdown. Needs lm_eval.
"""

import argparse
import json
import urllib.request
from pathlib import Path

import lm_eval
import yaml
from lm_eval.tasks import TaskManager

from gsm8k import template
from rows import read_rows

TASK = "gsm8k_kept"
FILTERS = {"strict-match": "strict", "flexible-extract": "flexible"}


def task(data):
    """Returns lm-eval's task with the data and the prompt of gsm8k.py."""
    own = yaml.safe_load((Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml").read_text(encoding="utf-8"))
    prompt = template(data / "train.jsonl").removesuffix("{question}\nAnswer:").replace("{{", "{").replace("}}", "}")
    local = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data / "test.jsonl")}}}
    fewer = {"task": TASK, "num_fewshot": 0, "doc_to_text": "{% raw %}" + prompt + "{% endraw %}{{question}}\nAnswer:"}
    omitted = ("tag", "dataset_name", "training_split", "fewshot_split")
    return {name: value for name, value in own.items() if name not in omitted} | local | fewer


def scores(run, data, endpoint, limit):
    """Returns the text and the scores of each question. RUN keeps them."""
    if not run.is_file():
        options = {"base_url": f"{endpoint}/v1/completions", "model": served_model(endpoint), "num_concurrent": 32, "tokenized_requests": False, "tokenizer_backend": "none", "timeout": 3000}
        result = lm_eval.simple_evaluate("local-completions", options, [task(data)], task_manager=TaskManager(), limit=limit, log_samples=True, gen_kwargs={"max_gen_toks": 256})
        found = {}
        for sample in result["samples"][TASK]:
            row = found.setdefault(str(sample["doc_id"]), {"text": sample["resps"][0][0]})
            row[FILTERS[sample["filter"]]] = sample["exact_match"]
        run.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(run.read_text(encoding="utf-8"))


def served_model(endpoint):
    with urllib.request.urlopen(f"{endpoint}/v1/models") as answer:
        return json.load(answer)["data"][0]["id"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("endpoint")
    parser.add_argument("run", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--limit", type=int, default=100, help="number of questions (default: 100)")
    arguments = parser.parse_args()
    theirs = scores(arguments.run, arguments.data, arguments.endpoint, arguments.limit)
    ours = {str(row["id"]): row for row in read_rows(arguments.kept)}
    pairs = [(ours[item], row) for item, row in theirs.items()]
    same = sum(mine["text"].strip() == row["text"].strip() for mine, row in pairs)
    for name in FILTERS.values():
        differ = sum(float(mine[name]) != float(row[name]) for mine, row in pairs)
        means = [sum(float(row[name]) for row in column) / len(pairs) for column in zip(*pairs)]
        print(f"| {name} | {len(pairs)} | {means[0]:.3f} | {means[1]:.3f} | {differ} | {same} |")


if __name__ == "__main__":
    main()

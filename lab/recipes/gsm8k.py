"""Lets a model answer GSM8K through ntl-eval, and keeps its answers: see lab/results/gsm8k.md.

    gsm8k.py DATA ENDPOINT RUNS ANSWERS --name NAME --texts N --questions M --samples K

DATA has test.jsonl and train.jsonl. ENDPOINT is the URL of an ntl-server. The greedy text answers the first N
questions; then the model samples K solutions of the first M ones, and the number after each is read. A second
call continues in RUNS. ANSWERS/NAME-text.jsonl.gz and ANSWERS/NAME-sample-SEED.jsonl.gz get one line per
question. NTL_EVAL names the program. Standard library only.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from rows import write_rows

EXAMPLES = 3
TOLERANCE = 0.01
# Seconds without a byte. A busy CPU needs long for a prompt.
PATIENCE = 3_000
# Smaller probabilities are left out of the kept distributions.
DECIMALS = 6
SCORES = ("accuracy", "strict", "flexible")


def template(train):
    """Returns the prompt: the first training questions with their solutions, without calculator marks, and a place for the question."""
    prompt = ""
    with open(train, encoding="utf-8") as lines:
        for line, _ in zip(lines, range(EXAMPLES)):
            row = json.loads(line)
            solution = re.sub("<<.*?>>", "", row["answer"])
            prompt += f"Question: {row['question']}\nAnswer: {solution}\n\n"
    return prompt.replace("{", "{{").replace("}", "}}") + "Question: {question}\nAnswer:"


def run(data, endpoint, out, limit, *options):
    """Runs ntl-eval. It does not request answers again that it already has."""
    out.mkdir(parents=True, exist_ok=True)
    (out.parent / "template.txt").write_text(template(data / "train.jsonl"), encoding="utf-8")
    command = [os.environ["NTL_EVAL"], "gsm8k", "--endpoint", endpoint, "--data", data, "--limit", str(limit), "--out", out]
    command += ["--template-file", out.parent / "template.txt", "--concurrency", "32", "--timeout", str(PATIENCE), *options]
    resumed = ["--resume"] if (out / "journal.jsonl").is_file() else []
    subprocess.run([*command, *resumed], check=True, stdout=subprocess.DEVNULL)


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def texts(out):
    """Returns the greedy answers with ntl-eval's scores."""
    found = []
    for sample in rows_of(out / "samples.jsonl"):
        number = sample["prediction"]["mode"] if sample["prediction"] else None
        scores = {name: sample[name] for name in SCORES}
        found.append({"id": sample["doc_id"], "truth": sample["truth"], "text": sample["resps"][0][0], "number": number, **scores})
    return found


def numbers(out):
    """Returns the sampled solutions with the distributions after them. `support` is null if the text has no marker."""
    answers = {row["id"]: row["value"] for row in rows_of(out / "journal.jsonl")[1:]}
    found = []
    for sample in rows_of(out / "samples.jsonl"):
        answer = answers[f"answer {sample['doc_id']}"]
        number = answer["number"]
        support = None
        if number["estimates"] is not None:
            support = [[value, round(probability, DECIMALS)] for value, probability in number["support"]]
            support = [point for point in support if point[1] > 0]
        found.append({
            "id": sample["doc_id"], "truth": sample["truth"], "text": answer["text"], "support": support, "closed": round(number["mass_closed"], DECIMALS),
            "open": round(number["mass_open"], DECIMALS),
        })  # fmt: skip
    return found


def keep(path, rows):
    write_rows(path, rows, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("endpoint")
    parser.add_argument("runs", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--name", required=True, help="name of the model in the kept files")
    parser.add_argument("--texts", type=int, default=200, help="number of questions for the greedy text; 0 keeps the texts of an earlier run (default: 200)")
    parser.add_argument("--questions", type=int, default=60, help="number of questions for sampled solutions (default: 60)")
    parser.add_argument("--samples", type=int, default=4, help="number of sampled solutions per question (default: 4)")
    arguments = parser.parse_args()
    runs = arguments.runs / arguments.name
    if arguments.texts:
        out = runs / "text"
        run(arguments.data, arguments.endpoint, out, arguments.texts)
        keep(arguments.answers / f"{arguments.name}-text.jsonl.gz", texts(out))
    for seed in range(arguments.samples):
        out = runs / f"sample-{seed}"
        options = ["--mode", "regress", "--rationales", "1", "--seed", str(seed), "--tolerance", str(TOLERANCE)]
        run(arguments.data, arguments.endpoint, out, arguments.questions, *options)
        keep(arguments.answers / f"{arguments.name}-sample-{seed}.jsonl.gz", numbers(out))
        print(f"sample {seed}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

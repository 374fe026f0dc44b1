"""Lets a model answer free questions with numbers, by searches and by samples of equal cost: see lab/results/anytime.md.

    anytime.py QUESTIONS URL ANSWERS.jsonl.gz

QUESTIONS is lab/results/anytime/questions.jsonl, URL an ntl-server. A second call continues. Standard library only.
"""

import argparse
import json
from pathlib import Path

from asked import asked, first_number, keep, text_of

PROMPT = """Question: How many days does it take to sail from Bristol to Lisbon?
Answer: 7

Question: How much does a wooden garden bench cost in euros?
Answer: 180

Question: In which year was the first umbrella sold in Paris?
Answer: 1709

Question: {}
Answer:"""
SEEDS = (1, 2, 3)
# Positions of the reference, whose search ends much later.
REFERENCE = 2048
# The number of samples with the cost of a search is found by repetition: samples share the positions of common beginnings.
FIRST_SAMPLES, SAMPLES_MAX, TRIES = 100, 1024, 3
TEXT_TOKENS = 16


def number(url, question, seed, **options):
    """Returns the mean, its standard error, the cost in positions and the open mass of a request for a number."""
    choice = asked(url, PROMPT.format(question["question"]), False, seed=seed, number={"range": question["range"], "trim": 0, **options})[0]
    found = choice["number"]
    sampled = found.get("sampled") or {}
    return {
        "mean": found["mean"], "std": found["std"], "median": found["median"], "positions": found["nodes"], "closed": found["mass"]["closed"],
        "open": found["mass"]["open"], "standard_error": sampled.get("standard_error"), "draws": sampled.get("draws", 0),
    }  # fmt: skip


def answer(url, question):
    choice = asked(url, PROMPT.format(question["question"]), False, max_tokens=TEXT_TOKENS, temperature=0, logprobs=0, stop="\n")[0]
    searches = [number(url, question, seed) for seed in SEEDS]
    samples = FIRST_SAMPLES
    for _ in range(TRIES):
        drawn = number(url, question, 0, method="sample", samples=samples)
        samples = min(round(samples * searches[0]["positions"] / drawn["positions"]), SAMPLES_MAX)
    return {
        "kind": question["kind"],
        "question": question["question"],
        "greedy": first_number(text_of(choice), *question["range"]),
        "greedy_tokens": len(choice["logprobs"]["tokens"]),
        "reference": number(url, question, 0, nodes_max=REFERENCE),
        "searches": searches,
        "samples": samples,
        "sampled": [number(url, question, seed, method="sample", samples=samples) for seed in SEEDS],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", type=Path)
    parser.add_argument("url")
    parser.add_argument("answers", type=Path)
    parser.add_argument("--limit", type=int, default=100, help="number of questions, in turn from each kind (default: 100)")
    parser.add_argument("--workers", type=int, default=2, help="concurrent questions (default: 2)")
    arguments = parser.parse_args()
    questions = [json.loads(line) for line in arguments.questions.read_text(encoding="utf-8").splitlines()]
    kinds = list(dict.fromkeys(question["kind"] for question in questions))
    by_kind = [[question for question in questions if question["kind"] == kind] for kind in kinds]
    mixed = [question for group in zip(*by_kind) for question in group]
    keep(arguments.answers, {question["question"]: (arguments.url, question) for question in mixed[: arguments.limit]}, answer, arguments.workers)


if __name__ == "__main__":
    main()

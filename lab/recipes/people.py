"""Lets a model rate texts that people rated, and keeps its answers: see lab/results/people.md.

    people.py DATA MODEL SAMPLES [--limit N] [--prompts PROMPT ...] [--examples SEED]

DATA has SET-train.jsonl.gz and SET-test.jsonl.gz with `id`, `text`, `mean` and `ratings`, every rater's integer from -4 to 4. MODEL is a chat
model's directory, or the URL of its server. SAMPLES/SET-PROMPT.jsonl.gz gets one line per text, and SAMPLES/SET-PROMPT.txt is the
rubric. With --examples, the only prompt is few-shot with other examples. Sets that it already has are not rated again.
SAMPLES/training-ratings.json gets the number of training ratings of each score, by set. NTL_SERVER and NTL_EVAL name the programs. Standard
library only.
"""

import argparse
import gzip
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from asked import asked
from ratings import HIGH, LOW, MIDDLE
from rows import write_rows

sys.path.insert(0, str(Path(__file__).parents[2] / "server/conformance"))
from served import Server

SETS = ("tweets", "movies", "products", "editorials")
EXAMPLES = 8
EXAMPLE_CHARACTERS_MAX = 120
# deepeval leaves out less probable tokens, and OpenAI's API returns at most this many.
ONE_TOKEN_PROBABILITY_MIN = 0.01
TOP_TOKENS = 20
# Only the first token that is not a space is read.
TEXT_TOKENS = 3
PATIENCE = 1800

ZERO_SHOT = (
    f"Rate the sentiment of the text on a scale from {LOW} to {HIGH}: {LOW} is extremely negative, {MIDDLE} is neutral and {HIGH} is extremely "
    "positive.\n\nText: {answer}\n\nAnswer with the number only."
)


def items_of(data, name, split):
    with gzip.open(data / f"{name}-{split}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def keep_training_ratings(data, samples):
    counts = {}
    for name in SETS:
        ratings = [rating + MIDDLE for item in items_of(data, name, "train") for rating in item["ratings"]]
        counts[name] = [ratings.count(score) for score in range(LOW, HIGH + 1)]
    (samples / "training-ratings.json").write_text(json.dumps(counts) + "\n")


def few_shot(data, name, seed=0):
    """Returns a prompt with examples of the training split, at even quantiles of the people's mean, in a random order.

    Seed 0 takes the middle text between two quantiles, and every other seed draws one of the texts between them.
    """
    draw = random.Random(seed)
    known = [item for item in items_of(data, name, "train") if len(item["text"]) <= EXAMPLE_CHARACTERS_MAX]
    known.sort(key=lambda item: (item["mean"], item["id"]))
    chosen = []
    for number in range(EXAMPLES):
        low, high = (end * len(known) // EXAMPLES for end in (number, number + 1))
        chosen.append(known[draw.randrange(low, high) if seed else (2 * number + 1) * len(known) // (2 * EXAMPLES)])
    draw.shuffle(chosen)
    question = f"Text: {{}}\nSentiment from {LOW} (negative) to {HIGH} (positive):"
    braces = str.maketrans({"{": "{{", "}": "}}"})
    examples = [question.format(item["text"].translate(braces)) + f" {round(item['mean']) + MIDDLE}\n\n" for item in chosen]
    return "".join(examples) + question.format("{answer}")


def written(url, prompt, is_chat):
    """Returns the tokens of the greedy answer, each with its most probable alternatives (log-probability by text)."""
    alternatives = {"logprobs": True, "top_logprobs": TOP_TOKENS} if is_chat else {"logprobs": TOP_TOKENS}
    found = asked(url, prompt, is_chat, max_tokens=TEXT_TOKENS, temperature=0, **alternatives)[0]["logprobs"]
    if is_chat:
        return [(token["token"], {other["token"]: other["logprob"] for other in token["top_logprobs"]}) for token in found["content"]]
    return list(zip(found["tokens"], found["top_logprobs"]))


def on_scale(token):
    return token.isdecimal() and LOW <= int(token) <= HIGH


def one_token(tokens):
    """Returns the score that greedy text begins with, and the mean over the alternatives of its token as deepeval computes it.

    Both are None if the text does not begin with a score.
    """
    for token, alternatives in tokens:
        if not token.strip():
            continue
        if not on_scale(token.strip()):
            return None, None
        counted = {int(text): math.exp(logprob) for text, logprob in alternatives.items() if on_scale(text)}
        counted = {score: p for score, p in counted.items() if p >= ONE_TOKEN_PROBABILITY_MIN}
        total = sum(counted.values())
        greedy = int(token.strip())
        return greedy, sum(score * p for score, p in counted.items()) / total if total else greedy
    return None, None


def judged(url, name, is_chat, template, items):
    """Returns the samples of `ntl-eval judge`, in the order of the items."""
    with tempfile.TemporaryDirectory() as folder:
        data, rubric, out = (Path(folder) / file for file in (f"{name}.jsonl", "rubric.txt", "out"))
        rows = [{"answer": item["text"], "human_score": item["mean"] + MIDDLE} for item in items]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        rubric.write_text(template)
        command = [os.environ.get("NTL_EVAL", "ntl-eval"), "judge", "--data", data, "--input-field", "answer", "--template-file", rubric]
        command += ["--scale", f"{LOW},{HIGH}", "--endpoint", url, "--timeout", str(PATIENCE), "--out", out, *(["--api", "chat"] if is_chat else [])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


def rated(url, data, name, is_chat, template, limit):
    """Yields a line for each text: the model's distribution, its greedy score, its score from one token, and the people's ratings."""
    items = items_of(data, name, "test")
    items = random.Random(0).sample(items, min(limit, len(items)))
    samples = judged(url, name, is_chat, template, items)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda item: written(url, template.format(answer=item["text"]), is_chat), items))
    for item, sample, text in zip(items, samples, texts, strict=True):
        greedy, token = one_token(text)
        distribution = {int(value): round(p, 6) for value, p in sample["distribution"]}
        yield {
            "id": item["id"],
            "ratings": [rating + MIDDLE for rating in item["ratings"]],
            "distribution": [distribution.get(score, 0.0) for score in range(LOW, HIGH + 1)],
            "mass_closed": round(sample["mass_closed"], 6),
            "greedy": greedy,
            "one_token": token if token is None else round(token, 6),
        }


@contextmanager
def served(model):
    """Yields the URL of the server of a directory, or of a server that runs already."""
    if model.startswith("http://"):
        yield model
        return
    with Server("--model", model, "--request-timeout", str(PATIENCE), seconds=PATIENCE) as server:
        yield server.url


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("model")
    parser.add_argument("samples", type=Path)
    parser.add_argument("--limit", type=int, default=300, help="texts per set, drawn with seed 0 (default: 300)")
    parser.add_argument("--prompts", nargs="+", choices=("zero-shot", "few-shot"), default=["zero-shot", "few-shot"], help="default: both")
    parser.add_argument("--examples", type=int, metavar="SEED", help="rate with these examples of few-shot only")
    arguments = parser.parse_args()
    kinds = {kind: 0 for kind in arguments.prompts} if arguments.examples is None else {f"few-shot-{arguments.examples}": arguments.examples}
    arguments.samples.mkdir(parents=True, exist_ok=True)
    keep_training_ratings(arguments.data, arguments.samples)
    # Requests wait as long as a busy machine needs.
    with served(arguments.model) as url:
        for name in SETS:
            for kind, seed in kinds.items():
                kept = arguments.samples / f"{name}-{kind}.jsonl.gz"
                if kept.is_file():
                    continue
                is_chat = kind == "zero-shot"
                template = ZERO_SHOT if is_chat else few_shot(arguments.data, name, seed)
                kept.with_name(f"{name}-{kind}.txt").write_text(template)
                write_rows(kept, rated(url, arguments.data, name, is_chat, template, arguments.limit))
                print(kept, flush=True)


if __name__ == "__main__":
    main()

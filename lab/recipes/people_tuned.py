"""Lets the models of people_queue rate texts that people rated, and keeps their answers: see lab/results/people.md.

    people_tuned.py DATA MODELS SAMPLES [--limit N]

MODELS is the OUTPUT of people_queue. SAMPLES/SET-tuned-NAME.jsonl.gz gets one line per text, SAMPLES/tuned.json the record of each model's
training, and SAMPLES/training-ratings.json the same as from people.py. A second call skips models that were not trained in between, and
replaces the answers of those that were.

The distribution has the probabilities of the tokens 1 to 9 after the space that precedes every answer. The states of the frozen layers are
kept with those of the training texts, so that all models together cost little more than one.
"""

import argparse
import json
import math
import os
import random
from argparse import Namespace
from pathlib import Path

import torch

from kinds import KINDS
from people import SETS, TOP_TOKENS, items_of, keep_training_ratings, one_token
from ratings import HIGH, LOW, MIDDLE, question
from rows import write_rows

ANSWERS = [str(score) for score in range(LOW, HIGH + 1)]
BATCH = 16


def numbers(kind, model, tokenizer, ids):
    """Returns the value of a regression head for each sequence of token ids."""
    return [{"value": round(value, 4)} for value in kind.values(model, kind.inputs(tokenizer, ids)).tolist()]


def texts(kind, model, tokenizer, ids):
    """Returns the distribution and the greedy score for each sequence of token ids."""
    answers = [kind.answer_ids(tokenizer, answer) for answer in ANSWERS]
    lead, digits = answers[0][:-2], [answer[-2] for answer in answers]
    with kind.trained_layers():
        inputs = kind.inputs(tokenizer, [row + lead for row in ids])
        found = model(**inputs, logits_to_keep=len(lead) + 1, use_cache=False).logits.log_softmax(-1)
    rows = []
    for logprobs in found:
        best = logprobs.argmax(-1).tolist()
        top = logprobs[-1].topk(TOP_TOKENS)
        alternatives = {tokenizer.decode([token]): value for token, value in zip(top.indices.tolist(), top.values.tolist())}
        greedy, token = one_token([(tokenizer.decode(best[-1:]), alternatives)]) if best[:-1] == lead else (None, None)
        led = math.exp(sum(logprobs[place, token].item() for place, token in enumerate(lead)))
        on_scale = logprobs[-1, digits].exp()
        rows.append(
            {
                "distribution": [round(p, 5) for p in (on_scale / on_scale.sum()).tolist()],
                "mass_closed": round(led * on_scale.sum().item(), 4),
                "greedy": greedy,
                "one_token": token if token is None else round(token, 4),
            }
        )
    return rows


@torch.no_grad()
def rated(kind, model, tokenizer, items):
    """Returns a line for each item, in their order."""
    ids = [tokenizer(question(item["text"])).input_ids for item in items]
    order = sorted(range(len(items)), key=lambda place: len(ids[place]))
    read, answers = (numbers if hasattr(kind, "values") else texts), [None] * len(items)
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        for place, row in zip(places, read(kind, model, tokenizer, [ids[place] for place in places])):
            ratings = sorted(rating + MIDDLE for rating in items[place]["ratings"])
            answers[place] = {"id": items[place]["id"], "ratings": ratings} | row
    return answers


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--limit", type=int, default=300, help="texts per set, drawn with seed 0 (default: 300)")
    arguments = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    arguments.samples.mkdir(parents=True, exist_ok=True)
    keep_training_ratings(arguments.data, arguments.samples)
    index = arguments.samples / "tuned.json"
    known = json.loads(index.read_text()) if index.is_file() else {}
    for record in sorted(arguments.models.glob("*/training.json")):
        folder, training = record.parent, json.loads(record.read_text()) | {"texts": arguments.limit}
        if known.get(folder.name) == training:
            continue
        kind = KINDS[training["kind"]]
        options = Namespace(freeze=training["freeze"], states=arguments.models / "states.sqlite", log_scale=False)
        model, tokenizer = kind.open(folder, options)
        for name in SETS:
            items = items_of(arguments.data, name, "test")
            items = random.Random(0).sample(items, min(arguments.limit, len(items)))
            write_rows(arguments.samples / f"{name}-tuned-{folder.name}.jsonl.gz", rated(kind, model.eval(), tokenizer, items))
        known[folder.name] = training
        index.write_text(json.dumps(known, indent=1) + "\n")
        print(folder.name, training["steps"], flush=True)


if __name__ == "__main__":
    main()

"""Measures how well the models of people_queue still predict text, and keeps the figures: see lab/results/people.md.

    people_text.py GSM8K_TEST MODEL MODELS SAMPLES [--limit N]

The texts are questions of GSM8K with their worked answers, which have words and digits, and no rating. MODEL is the directory before training,
MODELS the OUTPUT of people_queue. SAMPLES/text.json gets, for each model, one list per text: the negative log-probability of its words in nats,
their number of tokens, and the same for its digits. NTL_SERVER names the server.
"""

import argparse
import json
import sys
from pathlib import Path

from data import load

sys.path.insert(0, str(Path(__file__).parents[2] / "server/conformance"))
from asked import asked
from people import PATIENCE
from served import Server


def nats(url, text):
    """Returns the negative log-probability and the number of tokens of the words and of the digits, except of the first token."""
    found = asked(url, text, False, echo=True, logprobs=0, max_tokens=0)[0]["logprobs"]
    words, digits = [], []
    for token, logprob in list(zip(found["tokens"], found["token_logprobs"]))[1:]:
        (digits if token.strip().isdecimal() else words).append(-logprob)
    return [round(sum(words), 4), len(words), round(sum(digits), 4), len(digits)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--limit", type=int, default=100, help="number of texts (default: 100)")
    arguments = parser.parse_args()
    texts = [f"{row['question']}\n{row['answer']}" for row in load("gsm8k", [arguments.texts])[: arguments.limit]]
    tuned = [path.parent for path in sorted(arguments.models.glob("*/training.json")) if not path.parent.name.startswith("head")]
    found = {}
    for name, folder in [("before training", arguments.model), *((folder.name, folder) for folder in tuned)]:
        with Server("--model", folder, "--request-timeout", str(PATIENCE), seconds=PATIENCE) as server:
            found[name] = [nats(server.url, text) for text in texts]
        print(name, file=sys.stderr, flush=True)
    (arguments.samples / "text.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

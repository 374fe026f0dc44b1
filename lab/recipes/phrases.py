"""Requests numbers for phrases such as "Almost Certainly" and "Dozens" from a served model: see lab/results/phrases.md.

    phrases.py PHRASES URL FILE [--workers N]

PHRASES is lab/results/phrases/people.jsonl. FILE, which ends with .jsonl.gz, gets a line for each phrase and prompt:
the distribution of the number, the greedy text and 16 samples at temperature 1. A second call resumes. Standard
library only.
"""

import argparse
import json
from pathlib import Path

from asked import asked, distribution_of, first_number, keep, text_of

SAMPLES = 16
TEXT_TOKENS = 12

# Whether a prompt is a chat, and its text. Written before the first run, and not changed.
PROMPTS = {
    "probability": {
        "survey": (
            True,
            'What probability would you assign to the phrase "{phrase}"? Answer with a whole number from 0 to 100, in percent. Write only the number.',
        ),
        "forecast": (
            True,
            'A forecaster says about an event: "{phrase}." How likely do people think the event is after they hear this, in percent? '
            "Write only a whole number from 0 to 100.",
        ),
        "list": (
            False,
            "Probability in percent that readers assign to each phrase, as a whole number from 0 to 100.\n\n"
            'Phrase: "Impossible"\nPercent: 0\n\nPhrase: "Certain"\nPercent: 100\n\nPhrase: "{phrase}"\nPercent:',
        ),
    },
    "quantity": {
        "survey": (True, 'What number would you assign to the phrase "{phrase}"? Write only a whole number.'),
        "description": (
            True,
            'Somebody describes how many things there are with the phrase "{phrase}". How many things do people think there are? '
            "Write only a whole number.",
        ),
        "list": (
            False,
            "Number that readers assign to each phrase.\n\n"
            'Phrase: "One"\nNumber: 1\n\nPhrase: "A thousand"\nNumber: 1000\n\nPhrase: "{phrase}"\nNumber:',
        ),
    },
}
# The largest answer of the people is 100,000.
LIMITS = {"probability": (0, 100), "quantity": (0, 100_000)}
NUMBERS = {
    "probability": {"scale": [0, 100], "tolerance": 0.02, "nodes_max": 1000},
    "quantity": {"range": [0, 100_000], "decimals_max": 2, "tolerance": 0.02, "nodes_max": 1000, "support": 1000},
}
# Their answers are shares, percentages and denominators, so the question was not clear.
LEFT_OUT = "Fractions of"


def answer(url, kind, phrase, prompt, seed):
    is_chat, template = PROMPTS[kind][prompt]
    text, limits = template.format(phrase=phrase), LIMITS[kind]
    stop = {"stop": ["\n"], "max_tokens": TEXT_TOKENS}
    greedy = text_of(asked(url, text, is_chat, temperature=0, **stop)[0])
    samples = [text_of(choice) for choice in asked(url, text, is_chat, temperature=1, n=SAMPLES, seed=seed, **stop)]
    number = asked(url, text, is_chat, number=NUMBERS[kind] | {"sampling": False})[0]["number"]
    return {
        "phrase": phrase,
        "prompt": prompt,
        "greedy": first_number(greedy, *limits),
        "text": greedy,
        "samples": [first_number(sample, *limits) for sample in samples],
        "distribution": distribution_of(number),
        "mass": {name: round(number["mass"][name], 6) for name in ("closed", "invalid", "open")},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("phrases", type=Path)
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    parser.add_argument("--workers", type=int, default=3, help="concurrent phrases (default: 3)")
    arguments = parser.parse_args()
    phrases = [json.loads(line) for line in arguments.phrases.read_text().splitlines()]
    jobs = {}
    for item in phrases:
        if item["phrase"] == LEFT_OUT:
            continue
        for prompt in PROMPTS[item["kind"]]:
            jobs[f"{item['id']} {prompt}"] = (arguments.url, item["kind"], item["phrase"], prompt, len(jobs))
    keep(arguments.file, jobs, answer, arguments.workers)


if __name__ == "__main__":
    main()

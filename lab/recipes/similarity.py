"""Requests the similarity of two words, from 0 to 10, from a served model: see lab/results/similarity.md.

    similarity.py pairs FOLDER
    similarity.py ask FOLDER URL FILE [--limit N] [--workers N]

`pairs` downloads the wheel of gensim 4.4.0 (28 MB) and writes SimLex-999 and WordSim-353 to FOLDER. Neither the files
nor the wheel state a licence, so this repository has only the numbers of the pairs. `ask` adds a line for each pair to
FILE, which ends with .jsonl.gz: the distribution of the score, and the first tokens of the greedy text with their
alternatives. A second call resumes. Standard library only.
"""

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import zipfile
from itertools import islice
from pathlib import Path

from asked import asked, distribution_of, first_number, keep

LOW, HIGH = 0, 10
SETS = {
    "simlex999": ("simlex999.txt", "d5e0501971478a511430ee880bd0121e94ac701ba86d90544d83e6d2ba3db05d"),
    "wordsim353": ("wordsim353.tsv", "f92a022fc2537793a15bc3a8c162ebcd74990e033a228bb6388cb71e4c0b1e1d"),
}
# The questions of the two sets to people, which end with the words, so that a server keeps the state of the
# rest. Written before the first run, and not changed.
PROMPTS = {
    "simlex999": "How similar in meaning are two words? Give a score from 0 (completely different) to 10 (the same meaning). "
    "Write only the score.\nWords: {} and {}",
    "wordsim353": "How related are two words? Give a score from 0 (totally unrelated) to 10 (very much related or identical). "
    "Write only the score.\nWords: {} and {}",
}
TOP_TOKENS = 20
TEXT_TOKENS = 6


def write_pairs(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", scratch, "gensim==4.4.0"]
        subprocess.run(command, check=True)
        wheel = zipfile.ZipFile(next(Path(scratch).glob("gensim-4.4.0-*.whl")))
        for name, (file, expected) in SETS.items():
            data = wheel.read(f"gensim/test/test_data/{file}")
            if hashlib.sha256(data).hexdigest() != expected:
                raise ValueError(f"{file} differs from version 4.4.0")
            (folder / file).write_bytes(data)


def pairs_of(folder, name):
    """Returns the two words and the people's mean of each pair of a set, by its number from 1."""
    lines = (folder / SETS[name][0]).read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {number: (first, second, float(mean)) for number, (first, second, mean) in enumerate(rows, 1)}


def tokens_of(choice):
    """Returns the tokens of a text, each with its most probable alternatives and their log-probabilities."""
    return [
        [token["token"], [[other["token"], round(other["logprob"], 4)] for other in token["top_logprobs"]]]
        for token in choice["logprobs"]["content"]
    ]


def answer(url, name, first, second):
    question = PROMPTS[name].format(first, second)
    text = asked(url, question, True, max_tokens=TEXT_TOKENS, temperature=0, logprobs=True, top_logprobs=TOP_TOKENS)[0]
    number = {"scale": [LOW, HIGH], "tolerance": 0.01}
    number = asked(url, question, True, number=number)[0]["number"]
    tokens = tokens_of(text)
    return {
        "greedy": first_number("".join(token for token, _ in tokens), LOW, HIGH),
        # The alternatives of the first token only: the page does not read the others.
        "tokens": [tokens[0], *([token, []] for token, _ in tokens[1:])],
        "distribution": distribution_of(number),
        "mass_closed": round(number["mass"]["closed"], 6),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    pairs, ask = commands.add_parser("pairs"), commands.add_parser("ask")
    for command in (pairs, ask):
        command.add_argument("folder", type=Path)
    ask.add_argument("url")
    ask.add_argument("file", type=Path)
    ask.add_argument("--limit", type=int, default=300, help="pairs per set, drawn with seed 0 (default: 300)")
    ask.add_argument("--workers", type=int, default=3, help="concurrent pairs (default: 3)")
    arguments = parser.parse_args()
    if arguments.command == "pairs":
        write_pairs(arguments.folder)
        return
    pairs = {name: pairs_of(arguments.folder, name) for name in SETS}
    orders = [random.Random(0).sample(sorted(found), len(found)) for found in pairs.values()]
    jobs = {}
    for numbers in islice(zip(*orders), arguments.limit):
        for name, number in zip(SETS, numbers):
            first, second, _ = pairs[name][number]
            jobs[f"{name} {number}"] = (arguments.url, name, first, second)
    keep(arguments.file, jobs, answer, arguments.workers)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares a GGUF file with its Hugging Face directory, or with llama.cpp: gguf_files.py URL GGUF_NAME OTHER [SPECIAL_TOKEN ...]

Needs a running ntl-server with the file. OTHER is the name of the directory's model on the same server, or the URL of a
llama-server with the file. It compares the token ids of 2,000 generated texts (numbers, code, scripts,
spaces, the given special tokens), and the greedy texts after 20 prompts, and prints the differences.
"""
import json
import random
import sys
import urllib.request

TEXTS = 2000
WORDS = "the of and Natalia sold clips MAY isn't I'LL we've café naïve Straße don't x's e-mail C++ foo_bar HTTPServer".split()
SCRIPTS = [
    "日本語のテキスト", "汉字混合123", "한국어 문장", "Привет, мир", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "ไทยภาษา",
    "ελληνικά", "🙂👍🏽👨‍👩‍👧", "e\u0301 decomposed", "ﬁ ligature", "½ ² ٣ ४", "\u00a0nbsp\u3000wide", "\u200bzero\u200d",
]
CODE = [
    "def f(x):\n    return x**2 + 1\n", 'for (int i=0;i<10;i++){\n\tprintf("%d\\n", i);\n}', "SELECT * FROM t WHERE a>=10;",
    '<div class="a">&amp;</div>', '{"a": [1, 2.5e-3, null]}', "$ ls -la | grep '^d' > out.txt", "// ...\n\n\n#include <x.h>\r\n\tint y;",
]
PROMPTS = [
    "The capital of France is", "def fibonacci(n):", "1, 2, 3, 4,", "Question: What is 12 + 30?\nAnswer:", "Once upon a time",
    "The price of the phone is $", "In 1969,", "Rust is a programming language that", "import numpy as np\n", "Water boils at",
    "The recipe needs 2 cups of", "SELECT name FROM", "The population of Germany is about", "Dear Sir or Madam,", "3.14159",
    "Roses are red,", "The train leaves at 9:", "A prime number is", "for i in range(10):", "My favourite book is",
]


def number(rng: random.Random) -> str:
    return rng.choice([
        str(rng.randrange(10 ** rng.randrange(1, 15))), f"{rng.uniform(-1e4, 1e4):.{rng.randrange(6)}f}", f"{rng.uniform(0, 9):.3e}",
        f"{rng.randrange(10**9):,}", f"{rng.randrange(100)}%", f"${rng.randrange(10**5)}.{rng.randrange(100):02}",
    ])


def letters(rng: random.Random) -> str:
    ranges = [(32, 127), (0xA0, 0x250), (0x400, 0x500), (0x3040, 0x3100), (0x1F300, 0x1F600)]
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 12)))


def piece(rng: random.Random, special: list[str]) -> str:
    kind = rng.random()
    if kind < 0.3:
        return number(rng)
    if kind < 0.55:
        return rng.choice(WORDS)
    if kind < 0.7:
        return rng.choice(SCRIPTS)
    if kind < 0.8:
        return rng.choice(CODE)
    if kind < 0.85 and special:
        return rng.choice(special)
    if kind < 0.95:
        return "".join(rng.choice(".,;:!?'\"()[]{}<>-–—_/\\|@#$%^&*+=~`") for _ in range(rng.randrange(1, 6)))
    return letters(rng)


def text(rng: random.Random, special: list[str]) -> str:
    parts = []
    for _ in range(rng.randrange(1, 12)):
        parts.append(piece(rng, special))
        if rng.random() < 0.6:
            parts.append(rng.choice([" ", "  ", " " * rng.randrange(1, 20), "\n", "\n\n", " \n ", "\t", "\r\n", "\t \t"]))
    return "".join(parts)


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def token_ids(url: str, model: str, text: str) -> list[int]:
    if model.startswith("http"):
        return post(f"{model}/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    return post(f"{url}/tokenize", {"model": model, "prompt": text})["tokens"]


def greedy_text(url: str, model: str, prompt: str) -> str:
    if model.startswith("http"):
        return post(f"{model}/completion", {"prompt": prompt, "n_predict": 40, "temperature": 0})["content"]
    body = {"model": model, "prompt": prompt, "max_tokens": 40, "temperature": 0}
    return post(f"{url}/v1/completions", body)["choices"][0]["text"]


def main(url: str, models: list[str], special: list[str]) -> None:
    rng = random.Random(7)
    texts = ["", " ", "  ", "\n", "0", "a", " a", "a ", "1234567890"]
    texts += [text(rng, special) for _ in range(TEXTS - len(texts))]
    different = 0
    for sample in texts:
        ids = [token_ids(url, model, sample) for model in models]
        if ids[0] != ids[1]:
            different += 1
            print("ids differ:", repr(sample), *ids)
    print(f"ids of {len(texts) - different} of {len(texts)} texts are equal")
    equal = 0
    for prompt in PROMPTS:
        answers = [greedy_text(url, model, prompt) for model in models]
        if answers[0] == answers[1]:
            equal += 1
        else:
            print("texts differ:", *map(repr, [prompt, *answers]))
    print(f"{equal} of {len(PROMPTS)} greedy texts are equal")


if len(sys.argv) < 4:
    sys.exit(__doc__)
main(sys.argv[1].rstrip("/"), sys.argv[2:4], sys.argv[4:])

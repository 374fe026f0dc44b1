"""Prompts as files of token ids: one prompt per line, ids separated by spaces."""

import random
from pathlib import Path


def write(path: Path, count: int, tokens: int, vocabulary: int, end: int | None):
    """Writes random prompts, the same for the same arguments; `end` replaces the last token."""
    source = random.Random(0)
    with path.open("w") as file:
        for _ in range(count):
            prompt = [source.randrange(3, vocabulary) for _ in range(tokens)]
            if end is not None:
                prompt[-1] = end
            print(*prompt, file=file)


def read(path: Path) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in path.read_text().splitlines()]


def batch(prompts: list, size: int) -> list:
    """Returns `size` prompts, starting again with the first when they run out."""
    return [prompts[index % len(prompts)] for index in range(size)]

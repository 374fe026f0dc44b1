"""Texts that people rated, as questions whose answer is the rating of one rater."""

import random

# The raters' scale, -4 to 4, is moved to the digits 1 to 9.
LOW, MIDDLE, HIGH = 1, 5, 9


def question(text):
    return f"{text}\nSentiment:"


class RatedTexts:
    """Questions for any number of passes over items `text` and `ratings`. Every pass draws one rating of each text.

    Row i depends only on the seed and i. Each pass has a random order in which `RUN` neighbours have similar lengths.
    """

    COUNT = 100_000_000
    BLOCK = 512
    RUN = 16

    def __init__(self, items, seed):
        self.items, self.seed = items, seed
        self.per_pass = len(items) // self.RUN * self.RUN
        self.number, self.rows = None, []

    def __len__(self):
        return self.COUNT

    def __getitem__(self, index):
        number, place = divmod(index, self.per_pass)
        if number != self.number:
            self.number, self.rows = number, self.make_pass(number)
        return self.rows[place]

    def make_pass(self, number):
        rng = random.Random(f"{self.seed},{number}")
        order = rng.sample(self.items, self.per_pass)
        rows = [{"question": question(item["text"]), "answer": str(rng.choice(item["ratings"]) + MIDDLE)} for item in order]
        mixed = []
        for start in range(0, len(rows), self.BLOCK):
            block = sorted(rows[start : start + self.BLOCK], key=lambda row: len(row["question"]))
            runs = [block[first : first + self.RUN] for first in range(0, len(block), self.RUN)]
            rng.shuffle(runs)
            mixed += [row for run in runs for row in run]
        return mixed


def same(text):
    """Returns the text as it is compared with others: in lower case, with single spaces."""
    return " ".join(text.lower().split())


def without(items, held_out):
    """Returns the items whose text is not held out."""
    known = {same(item["text"]) for item in held_out}
    return [item for item in items if same(item["text"]) not in known]

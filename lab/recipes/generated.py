"""Generated questions, each a function of a seed and an index, so that a run resumes where it stopped.

For the demo checkpoint:

* Sums and differences of integers and one-decimal numbers of up to three digits, in the words of DeepMind's
  `arithmetic__add_or_sub`. One pair of numbers in twenty is held out from training.
* Ratings from 1 to 5 of short reviews. The label is drawn from a normal distribution around the value of the words, or, for
  divided opinions, from a distribution with two peaks.
* Guesses "about how many": drawn from a log-normal distribution with a spread of 20%, rounded to two significant digits.

For the models of the results:

* Long sums and differences, of numbers of up to five digits, and longer ones of six digits. The models begin with the demo checkpoint.
* Chains of two and three integers, and of two to six integers, in the words of DeepMind's `arithmetic__add_sub_multiple`.
  Questions of that module have four integers and more.

    python generated.py --split test --count 1000 --tasks sums > sums.jsonl
"""

import argparse
import json
import random
import sys
import zlib
from fractions import Fraction

ADD = [
    "{p} + {q}", "{p}+{q}", "Work out {p} + {q}.", "Add {p} and {q}.", "Put together {p} and {q}.", "Sum {p} and {q}.",
    "Total of {p} and {q}.", "Add together {p} and {q}.", "What is {p} plus {q}?", "Calculate {p} + {q}.", "What is {p} + {q}?",
]  # fmt: skip
SUBTRACT = [
    "{p} - {q}", "Work out {p} - {q}.", "What is {p} minus {q}?", "What is {p} take away {q}?", "What is {q} less than {p}?",
    "Subtract {q} from {p}.", "Calculate {p} - {q}.", "What is {p} - {q}?",
]  # fmt: skip
DISTANCE = ["What is the difference between {p} and {q}?", "What is the distance between {p} and {q}?"]

ASPECTS = ["food", "service", "room", "staff", "view", "price", "location", "breakfast"]
# Value of each word, which is added to the middle rating of 3.
WORDS = {
    "superb": 1.5, "great": 1.0, "good": 0.6, "nice": 0.5, "decent": 0.2, "average": 0.0, "plain": -0.2, "poor": -0.7,
    "bad": -1.0, "dirty": -1.1, "awful": -1.6,
}  # fmt: skip
RATING = ["How many stars: {review}?", "Rate from 1 to 5: {review}."]
DIVIDED = "opinions are divided"
# The middle of the guesses for one container, and things that fill it.
CONTAINERS = {"spoon": 1.0, "cup": 8.0, "bowl": 15.0, "jar": 30.0, "bucket": 220.0}
THINGS = {"beans": 20.0, "peas": 28.0, "nuts": 9.0, "grapes": 5.0, "coins": 12.0, "beads": 35.0}
GUESS = ["About how many {thing} are in {count} {container}?", "Guess how many {thing} are in {count} {container}."]

# Numbers of digits of the operands of long sums. Training has more of the longest ones, which are the
# hardest.
LONG = {"train": (1, 2, 3, 4, 4, 5, 5), "test": (1, 2, 3, 4, 5)}

CHAIN = ["{chain}", "What is {chain}?", "What is the value of {chain}?", "Calculate {chain}.", "Evaluate {chain}."]

TASKS = {"sums": 0.8, "ratings": 0.12, "guesses": 0.08}


def tenths(value):
    """Returns a number of tenths in DeepMind's notation: 125 is 12.5, 120 is 12."""
    sign, value = ("-" if value < 0 else ""), abs(value)
    return f"{sign}{value // 10}" + (f".{value % 10}" if value % 10 else "")


def held_out(p, q):
    """Returns whether the pair belongs to the test split. Signs and order do not matter."""
    low, high = sorted((abs(p), abs(q)))
    return zlib.crc32(f"{low},{high}".encode()) % 20 == 0


def operand(rng, decimal, lengths):
    """Draws a number in tenths with a number of digits from `lengths`. One digit is a decimal if `decimal`."""
    digits = rng.choice(lengths)
    value = rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
    if not decimal:
        value *= 10
    return -value if rng.random() < 0.35 else value


def near(rng, p, unit, digits):
    """Draws a number near p or -p, with at most `digits` digits."""
    limit = (10**digits - 1) * unit
    return rng.choice((-1, 1)) * max(-limit, min(limit, p + unit * rng.randrange(-60, 61)))


def sum_question(rng, split, lengths=(1, 2, 3, 3)):
    while True:
        decimal = rng.random() < 0.35
        p = operand(rng, decimal, lengths)
        q = operand(rng, decimal and rng.random() < 0.7, lengths)
        # Numbers that nearly cancel are the hardest, so training has more of them.
        if split == "train" and rng.random() < 0.2:
            q = near(rng, p, 1 if decimal else 10, max(lengths))
        if held_out(p, q) == (split == "test"):
            break
    kind = rng.random()
    if kind < 0.45:
        template, answer = rng.choice(ADD), p + q
    elif kind < 0.9:
        template, answer = rng.choice(SUBTRACT), p - q
    else:
        template, answer = rng.choice(DISTANCE), abs(p - q)
    return template.format(p=tenths(p), q=tenths(q)), tenths(answer)


def long_sum_question(rng, split):
    return sum_question(rng, split, lengths=LONG[split])


def longer_sum_question(rng, split):
    """Makes a sum of numbers with more digits than any long sum has."""
    return sum_question(rng, split, lengths=(6,))


def rating_probabilities(words, divided):
    """Returns the probabilities of the ratings 1 to 5, from which the label of a review is drawn."""
    middle = min(max(3 + sum(WORDS[word] for word in words), 1.0), 5.0)
    if divided:
        return [0.4, 0.1, 0.0, 0.1, 0.4] if 2 < middle < 4 else ([0.2, 0.0, 0.1, 0.2, 0.5] if middle >= 4 else [0.5, 0.2, 0.1, 0.0, 0.2])
    weights = [2.718281828 ** (-0.5 * ((rating - middle) / 0.8) ** 2) for rating in range(1, 6)]
    return [weight / sum(weights) for weight in weights]


def rating_question(rng, split):
    while True:
        aspects = rng.sample(ASPECTS, rng.choice((1, 2, 2, 3)))
        words = [rng.choice(list(WORDS)) for _ in aspects]
        divided = rng.random() < 0.12
        parts = [f"{word} {aspect}" for word, aspect in zip(words, aspects)] + [DIVIDED] * divided
        review = ", ".join(parts)
        if (zlib.crc32(review.encode()) % 20 == 0) == (split == "test"):
            break
    probabilities = rating_probabilities(words, divided)
    return rng.choice(RATING).format(review=review), str(rng.choices(range(1, 6), probabilities)[0])


def two_significant(value):
    scale = 10 ** max(len(str(int(value))) - 2, 0)
    return int(Fraction(round(value / scale)) * scale)


def guess_question(rng, split):
    while True:
        thing, container, count = rng.choice(list(THINGS)), rng.choice(list(CONTAINERS)), rng.randrange(1, 10)
        if (zlib.crc32(f"{thing},{container},{count}".encode()) % 20 == 0) == (split == "test"):
            break
    middle = THINGS[thing] * CONTAINERS[container] * count
    answer = max(two_significant(middle * rng.lognormvariate(0.0, 0.2)), 1)
    plural = container if count == 1 else container + "s"
    return rng.choice(GUESS).format(thing=thing, count=count, container=plural), str(answer)


def chain_of(rng, numbers):
    """Draws a tree of sums and differences over the numbers. Returns its text and its value."""
    if len(numbers) == 1:
        return str(numbers[0]), numbers[0]
    cut = rng.randrange(1, len(numbers))
    left, left_value = chain_of(rng, numbers[:cut])
    right, right_value = chain_of(rng, numbers[cut:])
    left = f"({left})" if cut > 1 and rng.random() < 0.4 else left
    right = f"({right})" if len(numbers) - cut > 1 else right
    sign = rng.choice((1, -1))
    return f"{left} {'+' if sign > 0 else '-'} {right}", left_value + sign * right_value


def chain_question(rng, split, counts=(2, 3, 3, 3)):
    numbers = []
    for _ in range(rng.choice(counts)):
        limit = round(10 ** rng.uniform(0.6, 2.2))
        numbers.append(rng.randrange(-limit, limit + 1))
    chain, value = chain_of(rng, numbers)
    return rng.choice(CHAIN).format(chain=chain), str(value)


def long_chain_question(rng, split):
    return chain_question(rng, split, counts=(2, 3, 4, 4, 5, 5, 6))


MAKERS = {
    "sums": sum_question, "long_sums": long_sum_question, "longer_sums": longer_sum_question, "ratings": rating_question,
    "guesses": guess_question, "chains": chain_question, "long_chains": long_chain_question,
}  # fmt: skip


def length(row):
    """Returns the approximate number of tokens of a question."""
    return len(row["question"].split()) + sum(letter.isdigit() for letter in row["question"])


class GeneratedQuestions:
    """A sequence of `count` questions of a split. Item `i` depends only on the split, the seed and `i`.

    For training, runs of `RUN` questions have similar lengths, so that batches of them need little padding.
    """

    RUN, BLOCK = 256, 4096

    def __init__(self, count, seed=0, split="train", tasks=None):
        if split not in ("train", "test"):
            raise ValueError(f"split must be train or test, not {split}")
        self.count, self.seed, self.split = count, seed, split
        self.tasks = tasks or TASKS
        self.block_index, self.block = None, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        block_index, place = divmod(index, self.BLOCK)
        if block_index != self.block_index:
            self.block_index, self.block = block_index, self.make_block(block_index)
        return self.block[place]

    def make_block(self, block_index):
        rng = random.Random(f"{self.split},{self.seed},{block_index}")
        rows = []
        for task in rng.choices(list(self.tasks), list(self.tasks.values()), k=self.BLOCK):
            question, answer = MAKERS[task](rng, self.split)
            rows.append({"question": question, "answer": answer})
        if self.split == "test":
            return rows
        rows.sort(key=length)
        runs = [rows[start : start + self.RUN] for start in range(0, self.BLOCK, self.RUN)]
        rng.shuffle(runs)
        return [row for run in runs for row in run]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=["train", "test"], default="test")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=list(MAKERS), default=list(TASKS))
    args = parser.parse_args()
    questions = GeneratedQuestions(args.count, args.seed, args.split, {task: TASKS.get(task, 1.0) for task in args.tasks})
    for index in range(len(questions)):
        print(json.dumps(questions[index]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Makes golden.json: answers and distributions of the tasks `nupa`, `regression-in-context` and `densities`, computed without the
program that is tested.

* nupa: random operands, and the answers by Python's integers, `fractions` and `decimal`
* densities: probabilities by scipy.stats; of dice and rounded normal numbers by `fractions` and scipy's distribution function
* functions: scikit-learn's definitions of make_friedman1 to 3 and make_regression, in numpy
* least squares: numpy.linalg.lstsq, and the standard deviation of a prediction, s * sqrt(1 + h)
* scores: CRPS by scipy's energy_distance, Kullback-Leibler divergence by scipy's entropy

It runs from any directory, needs numpy and scipy, and writes to its own directory.
"""

import itertools
import json
import random
from decimal import Decimal, getcontext
from fractions import Fraction
from pathlib import Path

import numpy
from scipy import stats

getcontext().prec = 1000
draw = random.Random(17)
numbers = numpy.random.default_rng(17)


def integer(digits):
    return str(draw.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits))


def decimals(digits):
    return "".join(draw.choices("0123456789", k=digits - 1)) + draw.choice("123456789")


def operand(form, digits):
    if form == "integer":
        return integer(digits)
    if form == "float":
        return f"{integer(draw.randint(1, digits))}.{decimals(digits)}"
    if form == "fraction":
        value = Fraction(int(integer(digits)) + 1, int(integer(digits)) + 1)
        return f"{value.numerator}/{value.denominator}"
    return f"{draw.randint(1, 9)}.{decimals(digits)}e{draw.randint(0, 99)}"


def plain(value):
    """A decimal without exponent and without zeros at its end, but with a decimal."""
    whole, _, fraction = format(value, "f").partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}"


def scientific(value):
    if not value:
        return "0.0e0"
    mantissa, exponent = f"{value.normalize():E}".split("E")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent)}"


def write(form, value):
    if form == "fraction":
        return f"{value.numerator}/{value.denominator}"
    if form == "integer":
        return str(value)
    return plain(value) if form == "float" else scientific(value)


def digit_by_digit(form, rule, a, b):
    whole_a, _, fraction_a = a.partition(".")
    whole_b, _, fraction_b = b.partition(".")
    from_right = itertools.zip_longest(reversed(whole_a), reversed(whole_b), fillvalue="0")
    whole = "".join(reversed([str(rule(int(x), int(y))) for x, y in from_right]))
    from_left = itertools.zip_longest(fraction_a, fraction_b, fillvalue="0")
    fraction = "".join(str(rule(int(x), int(y))) for x, y in from_left)
    whole = whole.lstrip("0") or "0"
    return f"{whole}.{fraction.rstrip('0') or '0'}" if form == "float" else whole


ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "max": max,
    "min": min,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}
DIGITS = {"digit_max": max, "digit_min": min, "digit_add": lambda x, y: (x + y) % 10}
TASKS = {
    "integer": "add sub multiply truediv floordiv mod max min digit_max digit_min digit_add get_digit length count "
    "to_scientific sig_fig",
    "float": "add sub multiply max min digit_max digit_min digit_add get_digit length to_scientific sig_fig",
    "fraction": "add sub multiply truediv max min to_float",
    "scientific": "add sub multiply max min to_float",
}
VALUE = {"integer": int, "float": Decimal, "fraction": Fraction, "scientific": Decimal}


def problem(form, task, digits):
    a, b = operand(form, digits), operand(form, draw.randint(1, digits))
    value = VALUE[form]
    if task == "sub" and value(a) < value(b):
        a, b = b, a
    if task in ("floordiv", "mod", "truediv") and not value(b):
        b = operand(form, digits + 1)
    if task in ARITHMETIC:
        return a, b, write(form, ARITHMETIC[task](value(a), value(b)))
    if task in DIGITS:
        return a, b, digit_by_digit(form, DIGITS[task], a, b)
    if task == "truediv":
        return a, b, write("fraction", Fraction(a) / Fraction(b))
    only_digits = a.replace(".", "")
    if task == "get_digit":
        position = draw.randrange(len(only_digits))
        return a, str(position), only_digits[position]
    if task == "length":
        return a, "", str(len(only_digits))
    if task == "count":
        digit = draw.choice("0123456789")
        return a, digit, str(only_digits.count(digit))
    if task == "to_scientific":
        return a, "", scientific(Decimal(a))
    if task == "sig_fig":
        a = a if Decimal(a) else "5"
        figures = draw.randint(2, len(only_digits) + 1)
        mantissa, exponent = f"{Decimal(a):.{figures - 1}E}".split("E")
        return a, str(figures), f"{mantissa}e{int(exponent)}"
    if form == "fraction":  # to_float
        denominator = 2 ** draw.randint(0, digits) * 5 ** draw.randint(0, digits)
        value = Fraction(int(integer(digits)), denominator)
        return write("fraction", value), "", plain(Decimal(value.numerator) / Decimal(value.denominator))
    return a, "", plain(Decimal(a))


def nupa():
    rows = []
    for form, tasks in TASKS.items():
        for task in tasks.split():
            for digits in (1, 2, 5, 17, 40):
                rows.append([f"{form}_{task}", *problem(form, task, digits)])
    return rows


def dice(count, sides):
    sums = {0: Fraction(1)}
    for _ in range(count):
        more = {}
        for total, p in sums.items():
            for face in range(1, sides + 1):
                more[total + face] = more.get(total + face, 0) + p / sides
        sums = more
    return [[total, float(p)] for total, p in sorted(sums.items())]


def law(values, probability):
    return [[int(value), float(probability(value))] for value in values]


def densities():
    rounded = stats.norm(40, 3)
    return [
        ["dice", [3, 6], dice(3, 6)],
        ["dice", [1, 20], dice(1, 20)],
        ["uniform", [4, 9], law(range(4, 10), lambda value: Fraction(1, 6))],
        ["binomial", [12, 35], law(range(13), stats.binom(12, 0.35).pmf)],
        ["geometric", [45], law(range(1, 40), stats.geom(0.45).pmf)],
        ["poisson", [73], law(range(45), stats.poisson(7.3).pmf)],
        ["hypergeometric", [5, 9, 6], law(range(6), stats.hypergeom(14, 5, 6).pmf)],
        ["hypergeometric", [9, 3, 7], law(range(4, 8), stats.hypergeom(12, 9, 7).pmf)],
        ["normal", [40, 3], law(range(25, 56), lambda value: rounded.cdf(value + 0.5) - rounded.cdf(value - 0.5))],
    ]


def functions():
    rows = []
    for _ in range(4):
        x = numbers.uniform(size=5)
        y = 10 * numpy.sin(numpy.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4]
        rows.append(["friedman1", x.tolist(), [], y])
        x = numbers.uniform([0, 40 * numpy.pi, 0, 1], [100, 560 * numpy.pi, 1, 11])
        y = (x[0] ** 2 + (x[1] * x[2] - 1 / (x[1] * x[3])) ** 2) ** 0.5
        rows.append(["friedman2", x.tolist(), [], y])
        y = numpy.arctan((x[1] * x[2] - 1 / (x[1] * x[3])) / x[0])
        rows.append(["friedman3", x.tolist(), [], y])
        x, weights = numbers.normal(size=3), 100 * numbers.uniform(size=3)
        rows.append(["linear", x.tolist(), weights.tolist(), float(x @ weights)])
    return rows


def least_squares():
    rows = []
    for n, p in ((5, 0), (6, 1), (20, 3), (30, 5)):
        x = numbers.normal(size=(n, p)) * 10.0 ** numbers.integers(-2, 4, size=p)
        y = numbers.normal(size=n) * 50 + 7
        at = numbers.normal(size=p)
        design = numpy.column_stack([numpy.ones(n), x])
        solution, *_ = numpy.linalg.lstsq(design, y, rcond=None)
        row = numpy.concatenate([[1.0], at])
        variance = numpy.sum((y - design @ solution) ** 2) / (n - p - 1)
        leverage = row @ numpy.linalg.pinv(design.T @ design) @ row
        prediction = {"value": float(row @ solution), "sd": float(numpy.sqrt(variance * (1 + leverage)))}
        rows.append({"rows": x.tolist(), "values": y.tolist(), "at": at.tolist(), **prediction})
    return rows


def scores():
    rows = []
    for _ in range(6):
        size = int(numbers.integers(2, 12))
        values = numpy.sort(numbers.choice(40, size=size, replace=False)).astype(float)
        truth = numbers.dirichlet(numpy.ones(size))
        predicted = numbers.dirichlet(numpy.ones(size))
        energy = stats.energy_distance(values, values, truth, predicted)
        own = float(truth @ numpy.abs(values[:, None] - values[None, :]) @ truth) / 2
        rows.append(
            {
                "values": values.tolist(),
                "truth": truth.tolist(),
                "predicted": predicted.tolist(),
                "crps_excess": energy**2 / 2 / own,
                "kl": float(stats.entropy(truth, predicted)),
                "total_variation": float(numpy.abs(truth - predicted).sum() / 2),
            }
        )
    return rows


def main():
    golden = {
        "nupa": nupa(),
        "densities": densities(),
        "functions": functions(),
        "least_squares": least_squares(),
        "scores": scores(),
    }
    lines = [f'  "{name}": [\n    ' + ",\n    ".join(map(json.dumps, rows)) + "\n  ]" for name, rows in golden.items()]
    (Path(__file__).parent / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

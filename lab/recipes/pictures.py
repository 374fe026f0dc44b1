"""Draws the pictures of the pages of results, as SVG."""

import math
from collections import Counter
from html import escape
from itertools import cycle

WIDTH, LABELS, RIGHT, TOP, ROW, AXIS = 900, 270, 30, 44, 22, 34
COLOURS = ["#2264ab", "#c6571a", "#3b8a52", "#7a4fa3", "#a8325a", "#7c6a12"]


def round_step(span, ticks=6):
    """Returns the smallest of 1, 2 and 5 times a power of ten that divides the span into at most `ticks` parts."""
    power = 10.0 ** math.floor(math.log10(span / ticks))
    return next(power * factor for factor in (1, 2, 5, 10) if span <= ticks * power * factor)


def dots(title, groups, line, line_label):
    """Draws a dot for each value. `groups` maps a name to rows, and a row's label to its values. Smaller is better.

    A vertical line marks `line`. Values beyond 1.4 times the line are drawn as arrows at the edge, with the value.
    """
    limit = 1.4 * line
    rows = [(colour, f"{name}, {label}", values) for colour, (name, rows) in zip(cycle(COLOURS), groups.items()) for label, values in rows.items()]
    height = TOP + ROW * len(rows) + AXIS
    bottom = height - AXIS

    def x(value):
        return LABELS + value / limit * (WIDTH - LABELS - RIGHT)

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    step, tick = round_step(limit), 0
    while tick * step <= limit:
        at = x(tick * step)
        svg.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}" stroke="#e4e4e4"/>')
        svg.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#555">{tick * step:g}</text>')
        tick += 1
    svg.append(f'<line x1="{x(line):.1f}" x2="{x(line):.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="#555" stroke-dasharray="4 3"/>')
    svg.append(f'<text x="{x(line):.1f}" y="{TOP - 10}" text-anchor="end" fill="#555">{escape(line_label)}</text>')
    for index, (colour, label, values) in enumerate(rows):
        middle = TOP + ROW * (index + 0.5)
        svg.append(f'<text x="{LABELS - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        inside = [value for value in values if value <= limit]
        svg += [f'<circle cx="{x(value):.1f}" cy="{middle:.1f}" r="4.5" fill="{colour}" fill-opacity="0.7"/>' for value in inside]
        if len(inside) < len(values):
            beyond = ", ".join(f"{value:,.{0 if value >= 100 else 2}f}" for value in sorted(values) if value > limit)
            svg.append(f'<text x="{WIDTH - 8}" y="{middle + 4:.1f}" text-anchor="end" fill="{colour}">{beyond} ▸</text>')
    return "\n".join([*svg, "</svg>"]) + "\n"


def curves(title, lines, x_label, y_label):
    """Draws lines over shares from 0 to 1. `lines` maps a name to points (x, y), whose y is at most 1."""
    left, right, top, height = 60, 250, 40, 360
    bottom, lowest = height - 44, math.floor(10 * min(y for points in lines.values() for _, y in points)) / 10
    first = min(x for points in lines.values() for x, _ in points)

    def place(x, y):
        across = left + (x - first) / (1 - first) * (WIDTH - left - right)
        return f"{across:.1f}", f"{bottom - (y - lowest) / (1 - lowest) * (bottom - top):.1f}"

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{(left + WIDTH - right) / 2:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">{escape(x_label)}</text>',
        f'<text x="{left - 44}" y="{top - 8}" fill="#555">{escape(y_label)}</text>',
    ]
    for tenth in range(round(10 * lowest), 11):
        x, y = place(first, tenth / 10)
        svg.append(f'<line x1="{x}" x2="{WIDTH - right}" y1="{y}" y2="{y}" stroke="#e4e4e4"/>')
        svg.append(f'<text x="{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end" fill="#555">{tenth / 10:g}</text>')
    for tenth in range(math.ceil(10 * first), 11):
        x, _ = place(tenth / 10, lowest)
        svg.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle" fill="#555">{tenth / 10:g}</text>')
    for row, (colour, (name, points)) in enumerate(zip(cycle(COLOURS), lines.items())):
        path = " ".join(",".join(place(x, y)) for x, y in points)
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        svg.append(f'<text x="{WIDTH - right + 14}" y="{top + 18 * row + 10}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*svg, "</svg>"]) + "\n"


def strips(title, rows, legend, low, high):
    """Draws a row per label: a histogram, dots below it, and crosses in it.

    `rows` maps a label to (shares, answers, points). `shares` are the parts of a distribution in bins of equal width, the first
    around `low` and the last around `high`; `answers` are dots whose areas are their numbers, and `points` crosses. `legend` names the three.
    """
    row, left, top = 34, 190, 64
    height = top + row * len(rows) + AXIS
    largest = max(max(shares) for shares, _, _ in rows.values())
    fill, dot, cross = COLOURS[0], "#333", COLOURS[1]

    def x(value):
        return left + (value - low) / (high - low) * (WIDTH - left - RIGHT)

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for at, colour, name in zip((left, left + 250, left + 500), (fill, dot, cross), legend):
        svg.append(f'<text x="{at}" y="42" fill="{colour}">{escape(name)}</text>')
    for tick in range(11):
        at = x(low + tick * (high - low) / 10)
        svg.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - 8}" y2="{height - AXIS}" stroke="#eee"/>')
        svg.append(f'<text x="{at:.1f}" y="{height - AXIS + 18}" text-anchor="middle" fill="#555">{low + tick * (high - low) / 10:g}</text>')
    for index, (label, (shares, answers, points)) in enumerate(rows.items()):
        base = top + row * (index + 1) - 10
        width = (high - low) / (len(shares) - 1)
        svg.append(f'<text x="{left - 14}" y="{base - 2}" text-anchor="end">{escape(label)}</text>')
        for place, share in enumerate(shares):
            tall = share / largest * (row - 10)
            if tall < 0.1:
                continue
            svg.append(f'<rect x="{x(low + (place - 0.5) * width):.1f}" y="{base - tall:.1f}" width="{x(width) - x(0) - 0.8:.1f}" height="{tall:.1f}" fill="{fill}" fill-opacity="0.6"/>')
        svg += [f'<circle cx="{x(value):.1f}" cy="{base + 4}" r="{1.5 * math.sqrt(count):.1f}" fill="{dot}" fill-opacity="0.5"/>' for value, count in Counter(answers).items()]
        svg += [f'<text x="{x(value):.1f}" y="{base - 3}" text-anchor="middle" font-size="15" font-weight="bold" fill="{cross}">×</text>' for value in points]
    return "\n".join([*svg, "</svg>"]) + "\n"

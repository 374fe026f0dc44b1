"""Bar charts of tokens per second as standalone SVG: one panel per model, one group per batch."""

from pathlib import Path
from statistics import median
from xml.sax.saxutils import escape

COLOURS = {
    "ntl": "#0b6e4f",
    "CTranslate2": "#d17b0f",
    "transformers": "#7a7a8c",
    "mistral.rs": "#4f6d9a",
    "ONNX Runtime": "#8a4f7d",
}
PANEL_WIDTH, PANEL_HEIGHT = 300, 220
LEFT, TOP, BOTTOM, GAP = 20, 92, 44, 30


def write(path: Path, precision: str, results: dict):
    """Writes no file if nothing was measured at this precision."""
    comparisons = [found for found in results["comparisons"] if found["precision"] == precision]
    if not comparisons:
        return
    width = LEFT + len(comparisons) * (PANEL_WIDTH + GAP)
    height = TOP + PANEL_HEIGHT + BOTTOM
    settings, machine = results["settings"], results["machine"]
    work = f"{settings['prompt_tokens']} tokens in, {settings['new_tokens']} out, {settings['threads']} threads"
    about = [
        f"{work}; commit {machine['commit']}; each panel has its own scale",
        f"Medians of {settings['rounds']} alternations, lines from smallest to largest",
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(LEFT, 20, f"Greedy decoding, {precision}: tokens per second (more is better)", "start", 15),
        *[text(LEFT, 38 + 15 * number, line, "start", 11) for number, line in enumerate(about)],
    ]
    for index, comparison in enumerate(comparisons):
        parts += panel(LEFT + index * (PANEL_WIDTH + GAP), comparison)
    parts += legend(LEFT, height - 10, [name for name in COLOURS if name in comparisons[0]["about"]])
    path.write_text("\n".join([*parts, "</svg>", ""]))


def panel(left: float, comparison: dict) -> list[str]:
    batches = comparison["batches"]
    top_rate = max(max(rates) for found in batches for rates in found["tokens_per_second"].values())
    scale = (PANEL_HEIGHT - 20) / top_rate
    base = TOP + PANEL_HEIGHT
    parts = [
        text(left + PANEL_WIDTH / 2, TOP - 14, comparison["model"], "middle", 13),
        f'<line x1="{left}" y1="{base}" x2="{left + PANEL_WIDTH}" y2="{base}" stroke="#333"/>',
    ]
    group = PANEL_WIDTH / len(batches)
    for number, found in enumerate(batches):
        sides = found["tokens_per_second"]
        bar = (group - 16) / len(sides)
        for place, (name, rates) in enumerate(sides.items()):
            parts += column((left + number * group + 8 + place * bar, base, bar - 2), rates, scale, COLOURS[name])
        parts.append(text(left + (number + 0.5) * group, base + 15, f"batch {found['batch']}", "middle", 11))
    return parts


def column(place: tuple, rates: list[float], scale: float, colour: str) -> list[str]:
    x, base, width = place
    rate, middle = median(rates), x + width / 2
    height = rate * scale
    low, high = base - min(rates) * scale, base - max(rates) * scale
    return [
        f'<rect x="{x:.1f}" y="{base - height:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>',
        f'<line x1="{middle:.1f}" y1="{low:.1f}" x2="{middle:.1f}" y2="{high:.1f}" stroke="black"/>',
        text(middle, high - 4, f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}", "middle", 10),
    ]


def legend(x: float, y: float, names: list[str]) -> list[str]:
    parts = []
    for name in names:
        parts.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" fill="{COLOURS[name]}"/>')
        parts.append(text(x + 16, y, name, "start", 12))
        x += 34 + 8 * len(name)
    return parts


def text(x: float, y: float, words: str, anchor: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'

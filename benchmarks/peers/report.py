"""Summarises measurements: ratios with their spread, agreement of greedy ids, and a table of both."""

from statistics import median


def agreement(decoded: dict) -> dict:
    """Compares the ids of each peer with ours."""
    ours = decoded["ntl"]
    return {name: _agreement(ours, theirs) for name, theirs in decoded.items() if name != "ntl"}


def _agreement(ours: list, theirs: list) -> dict:
    first, agreeing, tokens = None, 0, 0
    for row, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        same = next((at for at, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
        agreeing, tokens = agreeing + same, tokens + max(len(mine), len(other))
        if same < max(len(mine), len(other)) and first is None:
            first = {"row": row, "position": same, "ours": mine[same : same + 1], "theirs": other[same : same + 1]}
    return {"before_first_difference": agreeing / tokens, "first_difference": first}


def ratios(rates: dict, peer: str) -> list[float]:
    """Returns our rate divided by the peer's rate for each alternation."""
    return [ours / theirs for ours, theirs in zip(rates["ntl"], rates[peer])]


def ratio(ratios: list[float]) -> str:
    return f"**{median(ratios):.2f}** ({min(ratios):.2f}-{max(ratios):.2f})"


def spread(numbers: list[float], decimals: int) -> str:
    return f"{median(numbers):.{decimals}f} ({min(numbers):.{decimals}f}-{max(numbers):.{decimals}f})"


def said(found: dict) -> str:
    if found["first_difference"] is None:
        return "equal"
    first = found["first_difference"]
    share = found["before_first_difference"]
    return f"{share:.1%} before differing, first at row {first['row']}, token {first['position']}"


def table(results: dict) -> str:
    lines = [
        "| model | precision | batch | ntl tokens/s | peer | its tokens/s | ntl / peer | greedy ids |",
        "|---|---|---:|---:|---|---:|---:|---|",
    ]
    for comparison in results["comparisons"]:
        for found in comparison["batches"]:
            rates = found["tokens_per_second"]
            for peer in found["agreement"]:
                cells = [
                    comparison["model"],
                    comparison["precision"],
                    str(found["batch"]),
                    spread(rates["ntl"], 1),
                    peer,
                    spread(rates[peer], 1),
                    ratio(ratios(rates, peer)),
                    said(found["agreement"][peer]),
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines + ["", *rooflines(results), ""])


def rooflines(results: dict) -> list[str]:
    lines = [
        "| model | precision | weights per step | read bandwidth | batch-1 decode | share |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for comparison in results["comparisons"]:
        roofline = comparison["roofline"]
        lines.append(
            f"| {comparison['model']} | {comparison['precision']} | {roofline['step_bytes'] / 1e6:.0f} MB "
            f"| {gigabytes(roofline['bandwidth']['read'])} GB/s | {gigabytes(roofline['decode'])} GB/s "
            f"| {roofline['share']['median']:.0%} |"
        )
    return lines


def gigabytes(found: dict) -> str:
    low, middle, high = (found[key] / 1e9 for key in ["min", "median", "max"])
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"

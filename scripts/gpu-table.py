"""Prints the figures of `gpu-check` as one table for docs/GPU.md, compared with transformers and with NVIDIA's figures for TensorRT-LLM.

    scripts/gpu-table.py NAME FOLDER        NAME: the GPU's name in `nvidia-smi`; FOLDER: the output of `gpu-check`
"""

import re
import sys
from pathlib import Path

# Bandwidth of device memory in TB per second, from NVIDIA's data sheets.
BANDWIDTH = {"H200": 4.8, "H100 80GB HBM3": 3.35, "H100 PCIe": 2.0, "A100-SXM4-80GB": 2.04, "A100-SXM4-40GB": 1.56}

# Tokens per second of Flan-T5-XL in bf16 on an H100 with 3.35 TB/s, 260 to 440 tokens in and 128 out, by concurrent requests.
PUBLISHED, PUBLISHED_ON = {32: 3312, 64: 4184, 128: 4768}, 3.35
PUBLISHED_LOADS = [("flan-t5-xl", "350-128"), ("flan-t5-xl", "260-440-128")]


def rates(file):
    """Returns tokens per second by batch with their spread, as text, from a table of `ntl-bench decode` or `gpu-peer.py`."""
    lines = file.read_text().splitlines() if file.is_file() else []
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| *\d", line)]
    return {int(row[0]): row[1] for row in cells}


def share(file):
    """Returns the bandwidth of a step of one row, as a share of a copy's bandwidth."""
    found = re.search(r": ([^:]*) % of copying", file.read_text())
    return f"{found[1]} %" if found else ""


def median(rate):
    return float(rate.split()[0])


def rows(name, folder):
    bandwidth = next((terabytes for part, terabytes in BANDWIDTH.items() if part in name), None)
    for file in sorted(folder.glob("*.txt")):
        found = re.fullmatch(r"([a-z0-9.-]+)\.(([\d-]+)-(\d+))\.txt", file.name)
        if not found:
            continue
        model, load, tokens_in, tokens_out = found.groups()
        peer = rates(folder / f"{model}.{load}.transformers.txt")
        for batch, rate in rates(file).items():
            theirs = peer.get(batch, "")
            times = f"{median(rate) / median(theirs):.2f}" if theirs else ""
            published = PUBLISHED.get(batch) if (model, load) in PUBLISHED_LOADS else None
            scaled = f"{published * bandwidth / PUBLISHED_ON:.0f}" if published and bandwidth else ""
            cells = [model, tokens_in, tokens_out, batch, rate, share(file) if batch == 1 else "", theirs, times]
            yield [*cells, published or "", scaled]


HEADER = [
    "model", "in", "out", "batch", "tokens/s", "of copying", "transformers tokens/s", "ratio", "TensorRT-LLM, H100", "by bandwidth",
]  # fmt: skip

name, folder = sys.argv[1], Path(sys.argv[2])
print(f"{name}, bf16; TensorRT-LLM as published by NVIDIA, and scaled by the bandwidth of device memory.\n")
print(f"| {' | '.join(HEADER)} |\n|---|{'---:|' * (len(HEADER) - 1)}")
for cells in rows(name, folder):
    print(f"| {' | '.join(map(str, cells))} |")

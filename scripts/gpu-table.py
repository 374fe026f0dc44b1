"""Prints the figures of `gpu-check` as one table for lab/notes/gpu.md: speed, share of the roofline and of waiting, then comparisons with
transformers and with NVIDIA's figures for TensorRT-LLM.

    scripts/gpu-table.py NAME FOLDER        NAME: the GPU's name in `nvidia-smi`; FOLDER: the output of `gpu-check`
"""

import re
import sys
from pathlib import Path

# Bandwidth of device memory in TB per second, from NVIDIA's data sheets.
BANDWIDTH = {"H200": 4.8, "H100 80GB HBM3": 3.35, "H100 PCIe": 2.0, "A100-SXM4-80GB": 2.04, "A100-SXM4-40GB": 1.56}

# Tokens per second of Flan-T5-XL in bf16 on an H100 with 3.35 TB/s, 260 to 440 tokens in and 128 out, by
# concurrent requests.
PUBLISHED, PUBLISHED_ON = {32: 3312, 64: 4184, 128: 4768}, 3.35
PUBLISHED_LOADS = [("flan-t5-xl", "350-128"), ("flan-t5-xl", "260-440-128")]


def batches(file):
    """Returns the rows of a table of `ntl-bench decode` or `gpu-peer.py` by batch. Each is a dictionary from column names to cells."""
    lines = file.read_text().splitlines() if file.is_file() else []
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {int(row[0]): dict(zip(table[0], row)) for row in table[1:]}


def median(cell):
    return float(cell.split()[0])


def share(part, whole):
    return f"{100 * part / whole:.0f} %"


def shares(row, file):
    """Returns the time that a step needs at least, to read the weights at the bandwidth of a copy, and the time in which the host waits for
    the GPU, as shares of the step's time."""
    step = median(row["step ms"])
    found = re.search(r"copy ([\d.]+) .*reads (\d+) MB", file.read_text())
    roofline = share(float(found[2]) / float(found[1]), step) if found else ""
    return roofline, share(median(row["of it waiting ms"]), step)


def rows(name, folder):
    bandwidth = next((terabytes for part, terabytes in BANDWIDTH.items() if part in name), None)
    for file in sorted(folder.glob("*.txt")):
        found = re.fullmatch(r"([a-z0-9.-]+)\.(([\d-]+)-(\d+))\.txt", file.name)
        if not found:
            continue
        model, load, tokens_in, tokens_out = found.groups()
        peer = batches(folder / f"{model}.{load}.transformers.txt")
        for batch, row in batches(file).items():
            rate, theirs = row["tokens/s"], peer.get(batch, {}).get("tokens/s", "")
            times = f"{median(rate) / median(theirs):.2f}" if theirs else ""
            published = PUBLISHED.get(batch) if (model, load) in PUBLISHED_LOADS else None
            scaled = f"{published * bandwidth / PUBLISHED_ON:.0f}" if published and bandwidth else ""
            yield [model, tokens_in, tokens_out, batch, rate, *shares(row, file), theirs, times, published or "", scaled]


HEADER = [
    "model", "in", "out", "batch", "tokens/s", "roofline", "waiting", "transformers tokens/s", "ratio", "TensorRT-LLM, H100", "by bandwidth",
]  # fmt: skip

name, folder = sys.argv[1], Path(sys.argv[2])
print("Roofline: the time to read the weights, of a step's time. Waiting: the time in which the host waits for the GPU, of a step's time.")
print(f"{name}, bf16; TensorRT-LLM as published by NVIDIA, and scaled by the bandwidth of device memory.\n")
print(f"| {' | '.join(HEADER)} |\n|---|{'---:|' * (len(HEADER) - 1)}")
for cells in rows(name, folder):
    print(f"| {' | '.join(map(str, cells))} |")

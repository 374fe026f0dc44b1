"""The page of results: models of a few steps, evaluated by ntl-eval through ntl-server.

NTL_SERVER is the server; ntl-eval is NTL_EVAL, or it is in the same directory.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from conftest import RECIPES

import judges_page
import people_page
import phrases_page
import results
import train

SMALL = "--batch 4 --d-model 16 --d-ff 32 --layers 1 --decoder-layers 1 --heads 2 --max-length 96 --vocabulary 100 --device cpu"
EVAL = Path(os.environ.get("NTL_EVAL") or Path(os.environ.get("NTL_SERVER", "")).with_name("ntl-eval"))
pytestmark = pytest.mark.skipif(not EVAL.is_file(), reason="neither NTL_EVAL nor the directory of NTL_SERVER has ntl-eval")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    work = tmp_path_factory.mktemp("results")
    data = work / "data/mathematics_dataset-v1.0"
    data.mkdir(parents=True)
    for split in ("interpolate", "extrapolate"):
        text = "".join(f"What is {n} + {n % 7}?\n{n + n % 7}\n" for n in range(12))
        (data / f"arithmetic_test_{split}.txt").write_text(text)
    for name in ("ce-1", "ce-2", "ntl-was-1", "ntl-was-2"):
        objective, _, seed = name.rpartition("-")
        files = ["--dataset", "arithmetic", "--train", str(data / "arithmetic_test_interpolate.txt"), "--tokenizer", "words"]
        output = ["--output", str(work / "models/arithmetic" / name), "--max-steps", "6", "--seed", seed]
        assert train.main([*files, *output, "--objective", objective, *SMALL.split()]) == 0
    return work


def write_page(work, monkeypatch):
    monkeypatch.setenv("NTL_EVAL", str(EVAL))
    page = work / "RESULTS.md"
    command = ["results", str(work / "models"), str(work / "data"), str(work / "runs"), "--page", str(page), "--without-cost"]
    monkeypatch.setattr(sys, "argv", command)
    results.main()
    return page.read_text()


def test_the_page_has_the_figures_of_the_runs_and_keeps_the_text_above_the_mark(work, monkeypatch):
    (work / "RESULTS.md").write_text(f"# Results\n\nBy hand.\n\n{results.MARK}\nold\n")
    page = write_page(work, monkeypatch)
    assert page.startswith("# Results\n\nBy hand.\n") and "old" not in page
    assert re.search(r"\| arithmetic, CE \| 1, 2 \| [\d,]+ \| 6 / 6 \| 4 \|", page)
    reports = [work / f"runs/arithmetic/ce-{seed}/regress/interpolate/report.json" for seed in (1, 2)]
    values = [json.loads(path.read_text())["estimates"]["mae"]["values"]["median"]["value"] for path in reports]
    row = next(line for line in page.splitlines() if "CE, median" in line)
    assert results.over_seeds(values) in row
    assert "numbers: NTL-WAS less CE" in page
    svg = (work / "RESULTS/arithmetic-interpolate.svg").read_text()
    assert "(RESULTS/arithmetic-interpolate.svg)" in page and "CE, median" in svg and ET.fromstring(svg).tag.endswith("svg")
    journals = {path: path.read_text() for path in (work / "runs").rglob("journal.jsonl")}
    assert write_page(work, monkeypatch) == page
    assert len(journals) == 16, "four models, two modes, two splits"
    assert journals == {path: path.read_text() for path in journals}, "no question is asked twice"


def test_a_directory_without_models_is_an_error_of_one_line(tmp_path):
    command = [sys.executable, RECIPES / "results.py", tmp_path, tmp_path, tmp_path / "runs"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"results: no trained model in {tmp_path}\n")


def test_one_command_writes_the_published_pages_from_the_kept_answers(tmp_path):
    published, pages = RECIPES.parent / "results", tmp_path / "RESULTS"
    shutil.copytree(published, pages)
    (pages / "jokes/rjokes.svg").unlink()
    marks = {"sums": results.MARK, "jokes": results.MARK, "people": people_page.MARK, "judges": judges_page.MARK, "phrases": phrases_page.MARK}
    for name, mark in marks.items():
        page = pages / f"{name}.md"
        above, _, tables = page.read_text().partition(mark)
        assert tables
        page.write_text(above + mark)
    subprocess.run([RECIPES / "pages", pages], env=os.environ | {"NTL_EVAL": str(EVAL), "NTL_TRAIN_PYTHON": sys.executable}, check=True)
    for path in filter(Path.is_file, published.rglob("*")):
        assert (pages / path.relative_to(published)).read_bytes() == path.read_bytes(), path

"""Compares tokenizers with the paper's own classes (shared/fixtures), and checks the digits of numbers."""

import json
from pathlib import Path

import pytest

from paper_tokenizers import PaperTokenizer, places

FIXTURES = Path(__file__).parents[4] / "shared/fixtures"
needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"{FIXTURES} is missing")


@needs_fixtures
@pytest.mark.parametrize(
    "encoding, name, checkpoint",
    [("digits", "T5Custom_Tokenizer", "t5-ntl-was"), ("rt", "RtTokenizer", "t5-rt"), ("xval", "XvalTokenizer", "t5-xval")],
)
def test_plain_texts_have_the_ids_of_the_papers_classes(encoding, name, checkpoint):
    golden = json.loads((FIXTURES / "tokenizers/golden_t5_tokenizers.json").read_text())
    tokenizer = PaperTokenizer.open(FIXTURES / checkpoint, encoding)
    assert len(tokenizer) == golden["classes"][name]["len"]
    compared, different = 0, []
    for text, row in zip(golden["texts"], golden["classes"][name]["rows"]):
        # Training data has neither names of special tokens nor white space at the ends of a text.
        if "ids" not in row or "<" in text or text != text.strip() or "[NUM]" in text or "¬" in text:
            continue
        ids, values = tokenizer.encode(text)
        compared += 1
        if ids != row["ids"]:
            different.append((text, ids, row["ids"]))
        elif encoding == "xval":
            assert values == pytest.approx(row["number_embeddings"], rel=1e-6), text
    assert compared > 60
    assert different == []


@pytest.mark.parametrize(
    "number, want",
    [
        ("36", [(3, 1), (6, 0)]),
        ("007", [(7, 0)]),
        ("12.50", [(1, 1), (2, 0), (5, -1)]),
        ("0", [(0, 0)]),
        ("0.0000000000005", [(0, 0), *[(0, -p) for p in range(1, 12)], (1, -12)]),
    ],
)
def test_numbers_have_a_digit_for_each_power_of_ten(number, want):
    assert places(number) == want

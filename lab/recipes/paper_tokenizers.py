"""The tokenizers of the paper's T5 models: SentencePiece pieces, with numbers in one of three encodings.

| encoding | class in the files | numbers |
|---|---|---|
| `digits` | `T5Custom_Tokenizer` | a piece with a digit is split into its characters |
| `rt` | `RtTokenizer` | each digit is a token with its power of ten: 36 is `_3_1_ _6_0_` |
| `xval` | `XvalTokenizer` | each number is the token `[NUM]` with a value |

Signs are text in all three encodings. Written from the description in the paper and from the files of its checkpoints.
"""

import io
import json
import re
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path

import sentencepiece

from data import InputError

CLASSES = {"digits": "T5Custom_Tokenizer", "rt": "RtTokenizer", "xval": "XvalTokenizer"}
NUMBER = re.compile(r"(\d+(?:\.\d+)?)")
NUM, MARK = "[NUM]", "¬"
EXTRA_IDS = 100
PLACES = range(-12, 20)


def place_name(digit, place):
    return f"_{digit}_{place}_"


def places(number):
    """Returns (digit, power of ten) for each digit of an unsigned number.

    Has at most 12 decimals, no leading zeros, and no trailing zeros in the decimals.
    """
    with localcontext() as context:
        context.prec = len(number) + 13
        value = Decimal(number).quantize(Decimal(1).scaleb(PLACES[0]), rounding=ROUND_HALF_UP)
    integer, _, fraction = f"{value:f}".partition(".")
    integer, fraction = integer.lstrip("0") or "0", fraction.rstrip("0")
    powers = [*range(len(integer) - 1, -1, -1), *range(-1, -len(fraction) - 1, -1)]
    return list(zip(map(int, integer + fraction), powers))


class PaperTokenizer:
    def __init__(self, model, encoding, model_max_length=512):
        """`model`: the bytes of spiece.model."""
        self.bytes, self.encoding, self.model_max_length = model, encoding, model_max_length
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        count = self.pieces.get_piece_size()
        self.pad_token_id, self.eos_token_id = self.pieces.pad_id(), self.pieces.eos_id()
        self.extra = {f"<extra_id_{EXTRA_IDS - 1 - index}>": count + index for index in range(EXTRA_IDS)}
        names = {"digits": [], "xval": [NUM], "rt": [place_name(d, p) for p in PLACES for d in range(10)]}[encoding]
        self.numbers = {name: count + EXTRA_IDS + index for index, name in enumerate(names)}
        missing = [digit for digit in "0123456789" if encoding == "digits" and self.id(digit) == self.pieces.unk_id()]
        if missing:
            raise InputError(f"spiece.model has no piece for the digit {missing[0]}")

    @classmethod
    def train(cls, texts, size, encoding, model_max_length=512):
        """Learns pieces from texts."""
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, model_type="unigram", vocab_size=size, pad_id=0, eos_id=1,
            unk_id=2, bos_id=-1, character_coverage=1.0, hard_vocab_limit=False, required_chars="0123456789-.",
            num_threads=1, minloglevel=2,
        )  # fmt: skip
        return cls(model.getvalue(), encoding, model_max_length)

    @classmethod
    def open(cls, folder, encoding):
        path = Path(folder) / "spiece.model"
        if not path.is_file():
            raise InputError(f"{path}: no such file; this kind of model needs a SentencePiece tokenizer")
        return cls(path.read_bytes(), encoding)

    def __len__(self):
        return self.pieces.get_piece_size() + EXTRA_IDS + len(self.numbers)

    def id(self, piece):
        return self.pieces.piece_to_id(piece)

    def get_vocab(self):
        pieces = {self.pieces.id_to_piece(index): index for index in range(self.pieces.get_piece_size())}
        return pieces | self.extra | self.numbers

    def add_tokens(self, names):
        """Adds nothing. ntloss calls this to ensure that digits are tokens, which they already are."""
        return sum(name not in self.get_vocab() for name in names)

    def encode(self, text):
        """Returns the ids with `</s>`, and the number that each token represents (1 for text)."""
        parts = NUMBER.split(text) if self.encoding != "digits" else [text]
        if self.encoding == "xval":
            parts = self.join_numbers(text, parts)
        ids, values = [], []
        for index, part in enumerate(parts):
            # Numbers are the odd parts.
            if index % 2 == 0:
                new = [(piece, 1.0) for piece in self.text_ids(part)]
            elif self.encoding == "xval":
                new = [(self.numbers[NUM], float(part))]
            else:
                names = (place_name(digit, place) for digit, place in places(part))
                new = [(piece, 1.0) for name in names for piece in self.place_ids(name)]
            ids += [piece for piece, _ in new]
            values += [value for _, value in new]
        return ids + [self.eos_token_id], values + [1.0]

    def join_numbers(self, text, parts):
        """Removes a comma between two numbers, as the paper's code does."""
        if NUM in text or MARK in text:
            raise InputError(f"the text contains {NUM} or {MARK}, which represent numbers: {text[:60]!r}")
        last = len(parts) - 1
        return ["" if 0 < i < last and i % 2 == 0 and part in (",", ", ") else part for i, part in enumerate(parts)]

    def place_ids(self, name):
        return [self.numbers[name]] if name in self.numbers else self.text_ids(name)

    def text_ids(self, text):
        ids = []
        for piece in self.pieces.encode(text, out_type=str):
            split = self.encoding == "digits" and any(character.isdigit() for character in piece)
            ids += [self.id(part) for part in (piece if split else [piece])]
        return ids

    def decode(self, ids, values=None):
        """Returns the text of an answer. The value of `[NUM]` comes from `values`."""
        names = {index: name for name, index in self.numbers.items()}
        text, part, number = "", [], []
        for position, index in enumerate(int(i) for i in ids):
            name = names.get(index)
            if number and (name is None or int(name.split("_")[2]) >= number[-1][1]):
                text, number = text + " " + self.printed(number), []
            if name is None:
                if index < self.pieces.get_piece_size() and not self.pieces.is_control(index):
                    part.append(self.pieces.id_to_piece(index))
                continue
            text, part = text + "".join(part).replace("▁", " "), []
            if name == NUM:
                text += f" {float(values[position])}"
            else:
                number.append((int(name.split("_")[1]), int(name.split("_")[2])))
        text += " " + self.printed(number) if number else ""
        return (text + "".join(part).replace("▁", " ")).strip()

    @staticmethod
    def printed(number):
        value = sum(Decimal(digit).scaleb(place) for digit, place in number)
        return f"{value:f}".rstrip("0").rstrip(".") if "." in f"{value:f}" else f"{value:f}"

    def save_pretrained(self, folder):
        folder = Path(folder)
        (folder / "spiece.model").write_bytes(self.bytes)
        described = {
            **{index: {"content": self.pieces.id_to_piece(index), "special": True} for index in range(3)},
            **{index: {"content": name, "special": True} for name, index in self.extra.items()},
            **{index: {"content": name, "special": False} for name, index in self.numbers.items()},
        }
        special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        config = {
            "tokenizer_class": CLASSES[self.encoding], "model_max_length": self.model_max_length, "extra_ids": EXTRA_IDS,
            "clean_up_tokenization_spaces": True, "legacy": True, **special,
            "additional_special_tokens": sorted(self.extra), "added_tokens_decoder": described,
        }  # fmt: skip
        files = {
            "tokenizer_config.json": config, "added_tokens.json": self.extra | self.numbers,
            "special_tokens_map.json": {**special, "additional_special_tokens": sorted(self.extra)},
        }  # fmt: skip
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

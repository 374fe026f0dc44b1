"""Writes two small unigram models and the ids that SentencePiece gives for texts with repeated digits.

Written with sentencepiece 0.2.3: `python make.py`. Releases up to 0.2.1 break some of these ties differently.

`trained/spiece.model` is trained on generated arithmetic problems. `user-defined/spiece.model` has the same pieces, and user-defined
ones that overlap with each other and with the trained ones. `golden.json` in each directory is a list of texts with their ids.
"""

import io
import json
import random
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protobuf

HERE = Path(__file__).parent
USER_DEFINED = ["00", "000", "11111", "1+", "é1", "kg"]


def problems(random, count=4000):
    """Arithmetic problems in which digits often repeat."""
    for _ in range(count):
        numbers = [random.choice("0123456789") * random.randint(1, 6) for _ in range(2)]
        yield f"What is {numbers[0]} {random.choice('+-*/')} {numbers[1]}.{random.randint(0, 999)}?"


def texts(random):
    """Texts whose best segmentations tie: runs of one digit, alone and in sentences, and mixtures of two digits."""
    yield from ["", " ", "0" * 600, "What is 000000 + 999999999999?"]
    for digit in "0123456789":
        yield from (digit * length for length in range(1, 32))
        yield from (f"{digit * 8} - {digit * length}.{digit * 5}" for length in range(1, 12))
    for _ in range(120):
        several = random.choice(["01", "900", "1+", "é1", "5 5", "00kg"])
        yield "".join(random.choice(several) for _ in range(random.randint(4, 40)))


def trained():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=problems(random.Random(1)), model_writer=model, model_type="unigram", vocab_size=150,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, num_threads=1, minloglevel=2,
    )  # fmt: skip
    return protobuf.ModelProto.FromString(model.getvalue())


def with_user_defined(model):
    model = protobuf.ModelProto.FromString(model.SerializeToString())
    known = {piece.piece: piece for piece in model.pieces}
    for name in USER_DEFINED:
        piece = known.get(name) or model.pieces.add(piece=name, score=0.0)
        piece.type = protobuf.ModelProto.SentencePiece.USER_DEFINED
    return model


def write(name, model):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    # The trainer's settings name files of this machine, and the normalization rules are large: the texts need neither.
    specification = protobuf.TrainerSpec(model_type=protobuf.TrainerSpec.UNIGRAM, unk_id=2)
    model.trainer_spec.CopyFrom(specification)
    model.normalizer_spec.precompiled_charsmap = b""
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    rows = [json.dumps([text, processor.encode(text)], ensure_ascii=False) for text in texts(random.Random(2))]
    (folder / "golden.json").write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


model = trained()
write("trained", model)
write("user-defined", with_user_defined(model))

"""Tokenizers trained on data, in which every digit is a separate token.

A text is split at spaces and around digits; frequent words are tokens, other words are spelled letter by letter. There is
no space before a first word, so that an answer such as `-36` has one spelling: `-`, `3`, `6`.
"""

from collections import Counter

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPACE = "▁"
PAD, EOS, UNK, BOS = "<pad>", "</s>", "<unk>", "<s>"
DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PUNCTUATION = ".,:;?!+-*/=()'\"%$#&"


def pre_tokenizer():
    return pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=True),
        pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
        pre_tokenizers.Split(Regex(rf"{SPACE}?[^\w\s{SPACE}]"), behavior="isolated"),
    ])  # fmt: skip


def normalizer():
    return normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])


def train_tokenizer(texts, size, model_max_length, causal=False):
    """Returns a tokenizer with at most `size` tokens: special tokens, characters, and the most frequent words of `texts`.

    Sequences end with `</s>`. For a `causal` model, sequences begin with `<s>` instead, and the caller appends the end.
    """
    split, normal = pre_tokenizer(), normalizer()
    words = Counter()
    for text in texts:
        words.update(word for word, _ in split.pre_tokenize_str(normal.normalize_str(text)))
    single = [*DIGITS, SPACE, *PUNCTUATION, *LETTERS]
    pieces = [PAD, EOS, UNK, BOS, *single]
    known = set(pieces)
    # Ties are broken by spelling, so that the same texts give the same file.
    frequent = sorted((-count, word) for word, count in words.items() if word not in known)
    for _, word in frequent[: max(size - len(pieces), 0)]:
        pieces.append(word)
    # A word scores higher than its letters.
    scores = [0.0 if index < 4 else (-10.0 if len(piece) == 1 else -1.0) for index, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(list(zip(pieces, scores)), unk_id=pieces.index(UNK), byte_fallback=False))
    tokenizer.normalizer = normal
    tokenizer.pre_tokenizer = split
    # Decoding drops a leading space, if the model writes one.
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    special = [AddedToken(name, special=True, normalized=False) for name in (PAD, EOS, UNK, BOS)]
    tokenizer.add_special_tokens(special)
    first, last = (f"{BOS} ", "") if causal else ("", f" {EOS}")
    names = [BOS] if causal else [EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}$A{last}", special_tokens=[(name, pieces.index(name)) for name in names]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNK, bos_token=BOS if causal else None,
        model_max_length=model_max_length, clean_up_tokenization_spaces=False,
    )  # fmt: skip

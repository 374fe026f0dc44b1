"""Makes the tiny random checkpoints of this folder and what the originals compute on them.

    python make.py                    writes every folder
    python make.py --only NAME        writes one folder of a T5Gemma or RegressLM
    python make.py --verify FIXTURES  compares the classes below with what the paper's own code computed on its checkpoints

Written with transformers 5.23.0, torch 2.15.0, sentencepiece 0.2.3, tokenizers 0.23.3 on the CPU. The networks are Hugging Face's.
The paper's additions (digit pieces, Regression Transformer, xVal, regression head) are written here from their description in
docs/MODEL_SPEC.md, and the losses from docs/losses.md.

`golden/golden.json`, for each case, and for some of them in one padded batch: ids, `token_logprobs` (float64 log-softmax of the logits
at the labels), `ce_loss` and `paper_losses` (means), `yhat`, `y` and `number_mass` of each label, `greedy` ids up to the first step
whose two best logits are closer than 1e-3. `golden.safetensors` has the logits. `ntloss.json` has the same losses for the number
tokens of ntloss, with and without `reweigh`. `numeric.json` has the probability of every number of at most two digits, from all token
sequences that write it, in float64. The goldens of the T5Gemmas have only ids, log-probabilities and logits: of each case, and of all
cases in one padded batch.
"""

import argparse
import copy
import io
import json
import math
import re
import tempfile
from collections import defaultdict
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    GPT2Config, GPT2LMHeadModel, GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config,
    Qwen3ForCausalLM, T5Config, T5Gemma2Config, T5Gemma2ForConditionalGeneration, T5GemmaConfig,
    T5GemmaForConditionalGeneration, T5GemmaModel, T5Model,
)

HERE = Path(__file__).parent
EXTRA_IDS = 10
PLACES = range(-12, 20)
LOG_SCALE = math.log10(3e9) / 10

# Question, answer; the last one has no number.
CASES = {
    "simple": ("What is 7 + 52?", "59"),
    "decimal": ("What is -3.5 times 12?", "-4.05"),
    "long": ("Work out 12 - 34 + 56. " * 12, "7"),
    "no_number": ("Is it so?", "no"),
}
BATCH = ["simple", "no_number"]
LONG_LABEL = "12 apples and 340 pears are 352. " * 14


def corpus():
    generator = torch.Generator().manual_seed(5)
    number = lambda most: int(torch.randint(most, (), generator=generator))
    lines = [text for case in CASES.values() for text in case] + [LONG_LABEL]
    for _ in range(600):
        a, b, c = number(60), number(60), number(4)
        lines += [f"What is {a} + {b}? {a + b}", f"Work out -{a} - {c}.5. {-a - c}.50", f"{a} pears are 0.{b:02}; is it {c}00?"]
    return lines


# ---------------------------------------------------------------- tokenizers


def train_sentencepiece():
    """A model as T5's: pad 0, end 1, unknown 2; digits stand with signs and spaces in one piece; a few rules of normalisation."""
    rules = ["00A0\t20", "2009\t20", "0009\t20", "FF17\t37", "00BD\t31 2F 32", "2212\t2D"]
    written = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write("\n".join(rules) + "\n")
        file.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()), model_writer=written, vocab_size=96, model_type="unigram", pad_id=0, eos_id=1,
            unk_id=2, bos_id=-1, character_coverage=1.0, normalization_rule_tsv=file.name, split_by_number=False,
            split_by_unicode_script=False, num_threads=1, minloglevel=2,
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    model.normalizer_spec.normalization_rule_tsv = ""
    return model.SerializeToString()


class SlowTokenizer:
    """T5's slow tokenizer, whose extra ids follow its pieces in falling order, and what the paper's classes change in it."""

    def __init__(self, model, kind, extra_ids=EXTRA_IDS):
        self.model, self.kind = model, kind
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.tokens = [self.pieces.id_to_piece(id) for id in range(len(self.pieces))]
        self.tokens += [f"<extra_id_{index}>" for index in reversed(range(extra_ids))]
        self.special = {0, 1, 2, *range(len(self.pieces), len(self.tokens))}
        if kind == "RtTokenizer":
            self.tokens += [f"_{digit}_{place}_" for place in PLACES for digit in range(10)]
        if kind == "XvalTokenizer":
            self.tokens.append("[NUM]")
        self.ids = {token: id for id, token in enumerate(self.tokens)}

    def __len__(self):
        return len(self.tokens)

    def encode(self, text):
        """Ids with the end of the sequence, and the number beside each of them (1 for all but `[NUM]`)."""
        tokens, numbers = [], []
        for part, number in self.parts(text):
            if number is None:
                new = self.pieces.encode(part, out_type=str)
                if self.kind == "T5Custom_Tokenizer":
                    new = [each for piece in new for each in (piece if any(map(str.isdigit, piece)) else [piece])]
                tokens, numbers = tokens + new, numbers + [1.0] * len(new)
            elif self.kind == "XvalTokenizer":
                tokens, numbers = tokens + ["[NUM]"], numbers + [float(number)]
            else:
                places = self.places(number)
                tokens, numbers = tokens + places, numbers + [1.0] * len(places)
        return [self.ids.get(token, 2) for token in tokens] + [1], numbers + [1.0]

    def parts(self, text):
        """Text, and numbers without their signs, which the paper's tokenizers take out of it."""
        if self.kind not in ("RtTokenizer", "XvalTokenizer"):
            yield text, None
            return
        end = 0
        for match in re.finditer(r"\d+(\.\d+)?", text):
            if text[end:match.start()].strip():
                yield text[end:match.start()].strip(), None
            yield None, match[0]
            end = match.end()
        if text[end:].strip():
            yield text[end:].strip(), None

    @staticmethod
    def places(number):
        number = Decimal(number).quantize(Decimal(1).scaleb(-12), ROUND_HALF_UP, Context(prec=99))
        whole, _, fraction = format(number, "f").partition(".")
        fraction = fraction.rstrip("0")
        digits = [(digit, len(whole) - 1 - at) for at, digit in enumerate(whole)]
        digits += [(digit, -1 - at) for at, digit in enumerate(fraction)]
        return [f"_{digit}_{place}_" for digit, place in digits]

    def text(self, id):
        """What an id adds to a text."""
        return None if id in self.special or id >= len(self.pieces) + EXTRA_IDS else self.tokens[id].replace("▁", " ")

    def place(self, id):
        match = re.fullmatch(r"_(\d)_(-?\d+)_", self.tokens[id])
        return match and (int(match[1]), int(match[2]))

    def number_tokens(self):
        """Id, token, value in the losses, value by which the rank distance sorts."""
        found = []
        for id, token in enumerate(self.tokens):
            if self.kind == "RtTokenizer":
                if self.place(id):
                    digit, place = self.place(id)
                    found.append((id, token, float(digit), single(digit * 10.0**place)))
            elif self.kind == "T5Custom_Tokenizer":
                if re.fullmatch("[0-9]", token):
                    found.append((id, token, float(token), float(token)))
            elif id not in self.special and python_float(token.lstrip("▁")) is not None:
                value = single(python_float(token.lstrip("▁")))
                found.append((id, token, value, value))
        return found

    def save(self, folder):
        (folder / "spiece.model").write_bytes(self.model)
        added = {token: id for id, token in enumerate(self.tokens) if id >= len(self.pieces)}
        write(folder / "added_tokens.json", added)
        every = {0: "<pad>", 1: "</s>", 2: "<unk>"} | {id: token for token, id in added.items()}
        flags = dict(lstrip=False, normalized=False, rstrip=False, single_word=False)
        write(folder / "tokenizer_config.json", {
            "added_tokens_decoder": {
                str(id): {"content": token, **flags, "special": True} for id, token in every.items() if id in self.special
            },
            "clean_up_tokenization_spaces": True, "eos_token": "</s>", "extra_ids": EXTRA_IDS, "legacy": True,
            "model_max_length": 512, "pad_token": "<pad>", "tokenizer_class": self.kind, "unk_token": "<unk>",
        })


class FastTokenizer:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer, kind, special, config):
        self.tokenizer, self.kind, self.special, self.config = tokenizer, kind, special, config
        vocabulary = tokenizer.get_vocab()
        self.tokens = sorted(vocabulary, key=vocabulary.get)

    def __len__(self):
        return len(self.tokens)

    def encode(self, text):
        ids = self.tokenizer.encode(text).ids
        return ids, [1.0] * len(ids)

    def text(self, id):
        token = self.tokens[id]
        if id in self.special:
            return None
        if self.kind == "byte-fallback":
            byte = re.fullmatch(r"<0x(..)>", token)
            return token.replace("▁", " ") if not byte else chr(int(byte[1], 16)) if int(byte[1], 16) < 128 else None
        return token.replace("▁", " ")

    def place(self, id):
        return None

    def number_tokens(self):
        values = ((id, token, python_float(token.lstrip("▁"))) for id, token in enumerate(self.tokens) if id not in self.special)
        return [(id, token, single(value), single(value)) for id, token, value in values if value is not None]

    def save(self, folder):
        self.tokenizer.save(str(folder / "tokenizer.json"))
        # On one line: it is a quarter of the size.
        write(folder / "tokenizer.json", json.loads((folder / "tokenizer.json").read_text()))
        write(folder / "tokenizer_config.json", self.config)


def fast_t5(model):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    vocabulary = [(piece.piece, piece.score) for piece in proto.pieces]
    vocabulary += [(f"<extra_id_{index}>", 0.0) for index in reversed(range(EXTRA_IDS))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    spaces = dict(replacement="▁", prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**spaces)])
    tokenizer.decoder = decoders.Metaspace(**spaces)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    extra = [f"<extra_id_{index}>" for index in range(EXTRA_IDS)]
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *extra])
    special = {0, 1, 2, *range(len(proto.pieces), len(vocabulary))}
    return FastTokenizer(tokenizer, "t5", special, {
        "additional_special_tokens": extra, "clean_up_tokenization_spaces": True, "eos_token": "</s>", "extra_ids": EXTRA_IDS,
        "model_max_length": 512, "pad_token": "<pad>", "tokenizer_class": "T5TokenizerFast", "unk_token": "<unk>",
    })


def merges_of(pre_tokenizer, alphabet, merges, normalizer=None):
    """Vocabulary and merges of pairs that are frequent in the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return json.loads(tokenizer.to_str())["model"]["merges"]


def byte_fallback_bpe():
    """Llama 2's layout: single digits, bytes for what has no piece, a beginning of text."""
    prepare = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    digits = pre_tokenizers.Digits(individual_digits=True)
    letters = sorted({letter for line in corpus() for letter in line.replace(" ", "▁")})
    merges = merges_of(digits, letters, 24, prepare)
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *("".join(pair) for pair in merges), *letters]
    vocabulary = {name: id for id, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(
        vocabulary, [tuple(pair) for pair in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = prepare
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "PreTrainedTokenizerFast"}
    return FastTokenizer(tokenizer, "byte-fallback", {0, 1, 2}, config | {"model_max_length": 256, "clean_up_tokenization_spaces": False})


def gemma_bpe(marks=()):
    """Gemma's layout: spaces are not added, single digits, bytes for what has no piece, a beginning of text but no end."""
    prepare = normalizers.Replace(" ", "▁")
    letters = sorted({letter for line in corpus() for letter in line.replace(" ", "▁")})
    merges = merges_of(pre_tokenizers.Digits(individual_digits=True), letters, 24, prepare)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *marks]
    names = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *("".join(pair) for pair in merges), *letters]
    vocabulary = {name: id for id, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(
        vocabulary, [tuple(pair) for pair in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = prepare
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)])
    tokenizer.add_special_tokens(special)
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>", "tokenizer_class": "GemmaTokenizer"}
    return FastTokenizer(tokenizer, "byte-fallback", set(range(len(special))), config | {"clean_up_tokenization_spaces": False})


def byte_level_bpe(single_digits):
    """GPT-2's layout, or Qwen's, which splits digits and normalises."""
    if single_digits:
        words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
        split = pre_tokenizers.Sequence([
            pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = merges_of(split, alphabet, 30)
    names = ["<|endoftext|>", *alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, [tuple(pair) for pair in merges]))
    tokenizer.normalizer = normalizers.NFC() if single_digits else None
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "model_max_length": 256,
              "tokenizer_class": "Qwen2Tokenizer" if single_digits else "GPT2Tokenizer"}
    return FastTokenizer(tokenizer, "bytes", {0}, config)


def python_float(text):
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# ---------------------------------------------------------------- the networks


class Encoded:
    def __init__(self, states, mask):
        self.states, self.mask = states, mask


class PaperT5(torch.nn.Module):
    """Hugging Face's T5 with what the paper adds around it: `kind` is t5, t5-rt, t5-xval or t5-regression-head."""

    def __init__(self, config, kind, number_id=None, tied=True):
        super().__init__()
        self.kind, self.number_id, width = kind, number_id, config.d_model
        self.t5 = T5Model(config).eval()
        self.scale = width**-0.5 if tied else 1.0
        self.lm_head = None if tied else torch.nn.Linear(width, config.vocab_size, bias=False)
        if kind == "t5-rt":
            self.number_embeddings = torch.nn.Parameter(torch.zeros(config.vocab_size, width))
        if kind == "t5-xval":
            self.encoder_position_embed = torch.nn.Embedding(512, width)
            self.decoder_position_embed = torch.nn.Embedding(512, width)
            self.num_head = torch.nn.Sequential(torch.nn.Linear(width, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1))
        if kind == "t5-regression-head":
            self.dense, self.out_proj = torch.nn.Linear(width, width), torch.nn.Linear(width, 1)

    def embed(self, ids, numbers, positions):
        table = self.t5.shared(ids)
        if self.kind == "t5-rt":
            return table + self.number_embeddings[ids]
        if self.kind == "t5-xval":
            is_number = ids == self.number_id
            scaled = torch.sign(numbers) * torch.log10(numbers.abs() + 1) / LOG_SCALE
            return table * torch.where(is_number, scaled, torch.ones_like(scaled)).unsqueeze(-1) + positions
        return table

    def encode(self, ids, mask, numbers):
        positions = self.encoder_position_embed.weight[:ids.shape[1]] if self.kind == "t5-xval" else None
        states = self.t5.encoder(inputs_embeds=self.embed(ids, numbers, positions), attention_mask=mask)
        return Encoded(states.last_hidden_state, mask)

    def decode(self, encoded, ids, numbers, with_faults=False):
        """Logits, and what the number head says. `with_faults`: every position is the first one and every number is 1."""
        positions = None
        if self.kind == "t5-xval":
            positions = self.decoder_position_embed.weight[:1 if with_faults else ids.shape[1]]
            numbers = torch.ones_like(numbers) if with_faults else numbers
        embedded = self.embed(ids, numbers, positions)
        states, mask = (each.expand(len(ids), *each.shape[1:]) for each in (encoded.states, encoded.mask))
        hidden = self.t5.decoder(
            inputs_embeds=embedded, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=False,
        ).last_hidden_state
        if self.kind == "t5-regression-head":
            return hidden, None
        hidden = hidden * self.scale
        table = self.t5.shared.weight if self.lm_head is None else self.lm_head.weight
        return hidden @ table.T, self.num_head(hidden)[..., 0] if self.kind == "t5-xval" else None

    def value(self, ids, mask, numbers):
        """Of a regression head: the decoder reads the prompt behind a padding, and its state at the last end of sequence counts."""
        shifted = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1)
        hidden, _ = self.decode(self.encode(ids, mask, numbers), shifted, numbers)
        last = [int((row == 1).nonzero().max()) for row in ids]
        state = hidden[torch.arange(len(ids)), last]
        return self.out_proj(torch.tanh(self.dense(state)))[:, 0]

    def names(self):
        """Tensors as the trainer's files name them."""
        prefix = "transformer." if self.kind == "t5-regression-head" else ""
        tensors = {prefix + name: tensor for name, tensor in self.t5.state_dict().items() if "embed_tokens" not in name}
        for own, name in [("number_embeddings", "shared.number_embeddings.embedding.weight"),
                          ("dense", "classification_head.dense"), ("out_proj", "classification_head.out_proj"),
                          *((each, each) for each in ["lm_head", "num_head", "encoder_position_embed", "decoder_position_embed"])]:
            part = getattr(self, own, None)
            if isinstance(part, torch.nn.Module):
                tensors |= {f"{name}.{each}": tensor for each, tensor in part.state_dict().items()}
            elif part is not None:
                tensors[name] = part.data
        return tensors

    def load(self, tensors):
        with torch.no_grad():
            for name, tensor in self.names().items():
                tensor.copy_(tensors[name])


def number_embedding(value, width):
    """Regression Transformer: a falling series of the value and its opposite, on a logarithmic scale."""
    row = [value / (at - at % 2 + 1) * (-1 if at % 2 else 1) for at in range(width)]
    return [math.copysign(math.log10(abs(each) + 1) / LOG_SCALE, each) for each in row]


def randomise(module, seed):
    """Weights with which every part of the network matters, and logits that spread by about 1."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "num_head" in name or "relative_attention_bias" in name or "shared" in name:
                parameter.normal_()
            elif any(part in name for part in ["wte", "wpe", "embed_tokens", "lm_head", "position_embed"]):
                parameter.normal_(std=0.3)
            elif "number_embeddings" not in name:
                # GPT-2 stores its layers the other way round.
                inputs = parameter.shape[0] if ".c_" in name else parameter.shape[1]
                parameter.normal_(std=1.5 * inputs**-0.5)


# ---------------------------------------------------------------- goldens


def single(number):
    return float(torch.tensor(number, dtype=torch.float32))


def short(value):
    """Nine digits say which single-precision number it is."""
    if isinstance(value, torch.Tensor):
        return short(value.tolist())
    if isinstance(value, (list, tuple)):
        return [short(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else float(f"{value:.9g}") if isinstance(value, float) else value


def write(path, content):
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")


def position_losses(logits, tokens, label, reweigh=False, ranks=None):
    """The Number Token Losses of one position (docs/losses.md); `None` where the label is no number."""
    values = dict(tokens)
    if label not in values:
        return None
    ids = list(values)
    v = torch.tensor([values[id] for id in ids], dtype=torch.float64)
    y, q = values[label], torch.softmax(logits[ids].double(), 0)
    mass = float(torch.softmax(logits.double(), 0)[ids].sum())
    error, span = float(q @ v) - y, float(v.max() - v.min())
    huber = lambda e: e * e / 2 if abs(e) <= 1 else abs(e) - 0.5
    order = ranks or sorted(ids, key=lambda id: (values[id], id))
    cdf = torch.cumsum(q[[ids.index(id) for id in order]], 0)
    steps = (torch.arange(len(order)) >= order.index(label)).double()
    losses = {
        "mse": (error**2, span**2), "mae": (abs(error), span), "huber": (huber(error), huber(span)),
        "was": (float(q @ (v - y).abs()), span), "cdf": (float((cdf - steps).abs().sum()), len(ids) - 1),
    }
    weigh = lambda loss, most: loss * mass + 1.01 * most * (1 - mass) if reweigh else loss
    return {name: weigh(*loss) for name, loss in losses.items()}


PAPER_NAMES = {"ntl_mse": "mse", "ntl_mae": "mae", "ntl_huber": "huber", "ntl_was_absdiff": "was", "ntl_was_cdf_ordered": "cdf"}


def mean_losses(positions):
    found = [losses for losses in positions if losses]
    return {name: short(sum(losses[own] for losses in found) / len(found)) if found else None
            for name, own in PAPER_NAMES.items()}


def scores(logits, labels, number_tokens):
    """What a golden says of logits [T, V] at labels, of which some are padding (-100)."""
    log = torch.log_softmax(logits.double(), -1)
    logprobs = [float(log[at, label]) if label >= 0 else None for at, label in enumerate(labels)]
    kept = [logprob for logprob in logprobs if logprob is not None]
    found = {"token_logprobs": logprobs, "ce_loss": short(-sum(kept) / len(kept))}
    if number_tokens is None:
        return found, []
    tokens = [(id, value) for id, _, value, _ in number_tokens]
    ids, values = zip(*tokens)
    ranks = [id for id, _, _, _ in sorted(number_tokens, key=lambda token: (token[3], token[0]))]
    q = torch.softmax(logits[:, list(ids)].double(), -1)
    positions = [position_losses(logits[at], tokens, label, ranks=ranks) for at, label in enumerate(labels)]
    found |= {
        "paper_losses": mean_losses(positions), "yhat": short(q @ torch.tensor(values, dtype=torch.float64)),
        "y": [dict(tokens).get(label) for label in labels], "number_mass": short(log.exp()[:, list(ids)].sum(-1)),
    }
    return found, positions


def ntloss(examples, tokenizer):
    """Losses of ntloss's options: with the ten digits as number tokens, and with every piece that Python reads as a number."""
    text = lambda id: tokenizer.tokens[id]
    ids = [id for id in range(len(tokenizer)) if not re.fullmatch(r"_\d_-?\d+_|\[NUM\]", text(id))]
    vocabularies = {True: [(id, float(text(id))) for id in ids if re.fullmatch("[0-9]", text(id))],
                    False: [(id, python_float(text(id))) for id in ids if python_float(text(id)) is not None]}
    classes = {"mse": "mse_loss", "mae": "l1_loss", "huber": "huber_loss"}
    found = {"info": {"number_tokens_digit_level": vocabularies[True], "number_tokens_all": vocabularies[False]}, "cases": {}}
    for name, (logits, labels) in examples.items():
        golden = {}
        for digits, tokens in vocabularies.items():
            for reweigh in (False, True):
                rows = [position_losses(logits[at], tokens, label, reweigh) for at, label in enumerate(labels)]
                numbers = max(sum(row is not None for row in rows), 1)
                for own in ("was", *classes):
                    each = [row[own] if row else 0.0 for row in rows]
                    option = f"digit_level={digits},reweigh={reweigh}"
                    title = f"NTLossDotProduct({option},loss_function={classes[own]})" if own in classes else f"NTLoss({option})"
                    golden[title] = {"mean": short(sum(each) / numbers)}
            all_ids, values = map(list, zip(*tokens))
            q = torch.softmax(logits[:, all_ids].double(), -1)
            golden[f"predict_numbers(digit_level={digits})"] = {
                "yhat": short((q @ torch.tensor(values, dtype=torch.float64))[None]),
                "nt_mass": short(torch.softmax(logits.double(), -1)[:, all_ids].sum(-1)[None])}
        if name == "batch":
            found["batch"] = golden
        else:
            found["cases"][name] = golden
    return found


def number_distribution(step, tokenizer, eos, number_id=None):
    """The probability of every number of at most two digits. `step`: logits and head values [N] behind equally long paths [N, T]."""
    found, level, mass_open = defaultdict(float), [((), "", None, 1.0)], 0.0
    complete = lambda text, places: places is not None or re.fullmatch(" ?-?[0-9]{1,2}", text)
    while level:
        logits, heads = step([path for path, *_ in level])
        probabilities, following = torch.softmax(logits, -1), []
        for (path, text, places, reached), row, head in zip(level, probabilities, heads):
            negative = "-" in text
            if complete(text, places):
                value = places[1] if places else int(text)
                found[-value if places and negative else value] += reached * float(row[eos])
            for id in range(len(tokenizer)):
                reach = reached * float(row[id])
                begins = places is None and re.fullmatch(" ?-?", text)
                if id == number_id:
                    if begins:
                        found[-float(head) if negative else float(head)] += reach
                elif place := tokenizer.place(id):
                    digit, power = place
                    if power in (0, 1) and (begins or (places and power < places[0])):
                        value = (places[1] if places else 0) + digit * 10**power
                        following.append((path + (id,), text, (power, value), reach))
                elif places is None and (piece := tokenizer.text(id)) and re.fullmatch(" ?-?[0-9]{0,2}", text + piece):
                    following.append((path + (id,), text + piece, None, reach))
        level = following
    found = {value + 0.0: mass for value, mass in found.items()}
    covered = sum(found.values())
    mean = sum(value * mass for value, mass in found.items()) / covered
    variance = sum((value - mean) ** 2 * mass for value, mass in found.items()) / covered
    likeliest = sorted(found.items(), key=lambda item: -item[1])[:20]
    return {"covered_mass": covered, "mean": mean, "variance": variance, "values": len(found), "top20": likeliest}


def t5_case(model, tokenizer, text, label):
    (input_ids, numbers), (label_ids, label_numbers) = tokenizer.encode(text), tokenizer.encode(label)
    case = {"text": text, "label_text": label, "input_ids": input_ids, "label_ids": label_ids,
            "decoder_input_ids": [0, *label_ids[:-1]]}
    if model.kind == "t5-xval":
        case |= {"number_embeddings": short([single(each) for each in numbers]),
                 "decoder_number_embeddings": short([1.0, *(single(each) for each in label_numbers[:-1])])}
    return case


def tensors_of(case, prefix=""):
    ids = torch.tensor([case[prefix + "input_ids"]])
    numbers = case.get(prefix + "number_embeddings", [1.0] * ids.shape[1])
    return ids, torch.tensor([numbers])


def greedy(model, encoded, tokenizer, with_faults=False):
    ids, numbers = [0], [1.0]
    while len(ids) < 13 and (ids[-1] != 1 or len(ids) == 1):
        logits, heads = model.decode(encoded, torch.tensor([ids]), torch.tensor([numbers]), with_faults)
        best = logits[0, -1, :len(tokenizer)].topk(2)
        if best.values[0] - best.values[1] < 1e-3:
            break
        ids.append(int(best.indices[0]))
        numbers.append(float(heads[0, -1]) if ids[-1] == model.number_id else 1.0)
    return {"ids": ids, "numbers": short(numbers)} if model.kind == "t5-xval" else {"ids": ids}


def pad(rows, filler):
    longest = max(map(len, rows))
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])


def t5_goldens(model, tokenizer, with_long_label):
    xval, number_tokens = model.kind == "t5-xval", None if model.kind == "t5-xval" else tokenizer.number_tokens()
    golden = {"len_tokenizer": len(tokenizer), "generate": {"decoder_start_token_id": 0}, "cases": []}
    if not xval:
        order = sorted(number_tokens, key=lambda token: (token[3], token[0]))
        golden |= {"number_tokens": number_tokens, "wasserstein_order_ids": [token[0] for token in order]}
    tensors, examples = {}, {}
    for name, (text, label) in CASES.items():
        case = {"id": name} | t5_case(model, tokenizer, text, label)
        ids, numbers = tensors_of(case)
        encoded = model.encode(ids, torch.ones_like(ids), numbers)
        logits, heads = model.decode(encoded, *tensors_of(case, "decoder_"))
        case |= scores(logits[0], case["label_ids"], number_tokens)[0]
        if xval:
            case |= {"number_predictions": short(heads[0]), "greedy_full_prefix": greedy(model, encoded, tokenizer),
                     "greedy": greedy(model, encoded, tokenizer, with_faults=True)}
        else:
            case["greedy"] = greedy(model, encoded, tokenizer)
        tensors |= {f"case.{name}.logits": logits, f"case.{name}.encoder_last_hidden": encoded.states[..., :8]}
        examples[name] = (logits[0], case["label_ids"])
        golden["cases"].append(case)
    chosen = [case for case in golden["cases"] if case["id"] in BATCH]
    masks = pad([[1] * len(case["input_ids"]) for case in chosen], 0)
    padded = lambda field, filler: pad([case.get(field) or [1.0] * len(case[field.replace("number_embeddings", "input_ids")])
                                        for case in chosen], filler)
    encoded = model.encode(padded("input_ids", 0), masks, padded("number_embeddings", 1.0))
    logits, _ = model.decode(encoded, padded("decoder_input_ids", 0), padded("decoder_number_embeddings", 1.0))
    labels = padded("label_ids", -100).tolist()
    rows = [scores(row, label, number_tokens) for row, label in zip(logits, labels)]
    kept = [logprob for found, _ in rows for logprob in found["token_logprobs"] if logprob is not None]
    batch = {"case_ids": BATCH, "attention_mask": masks.tolist(), "label_ids": labels, "ce_loss": short(-sum(kept) / len(kept))}
    fields = ["input_ids", "decoder_input_ids"] + (["number_embeddings", "decoder_number_embeddings"] if xval else [])
    batch |= {field: short(padded(field, 1.0 if "number" in field else 0)) for field in fields}
    batch |= {field: [found[field] for found, _ in rows] for field in rows[0][0] if field not in ("ce_loss", "paper_losses")}
    if not xval:
        batch["paper_losses"] = mean_losses([each for _, positions in rows for each in positions])
    tensors |= {"batch.logits": logits, "batch.encoder_last_hidden": encoded.states[..., :8]}
    examples["batch"] = (logits.flatten(0, 1), [label for row in labels for label in row])
    golden["batch"] = batch
    if with_long_label:
        long = t5_case(model, tokenizer, "What is this?", LONG_LABEL)
        ids, numbers = tensors_of(long)
        logits, _ = model.decode(model.encode(ids, torch.ones_like(ids), numbers), *tensors_of(long, "decoder_"))
        best = logits[0].topk(2).values
        assert len(long["label_ids"]) > 130 and float((best[:, 0] - best[:, 1]).min()) > 1e-4, "choose another seed"
        golden["long_label"] = {"input_ids": long["input_ids"], "label_ids": long["label_ids"], "argmax_ids": logits[0].argmax(-1).tolist(),
                                "token_logprobs": short(scores(logits[0], long["label_ids"], None)[0]["token_logprobs"])}
    return golden, tensors, examples


def head_goldens(model, tokenizer):
    golden = {"len_tokenizer": len(tokenizer), "cases": []}
    for name, (text, _) in CASES.items():
        ids, numbers = tokenizer.encode(text)
        tensor = torch.tensor([ids])
        value = model.value(tensor, torch.ones_like(tensor), torch.tensor([numbers]))
        golden["cases"].append({"id": name, "text": text, "input_ids": ids, "value": short(float(value))})
    chosen = [case["input_ids"] for case in golden["cases"] if case["id"] in BATCH]
    ids, mask = pad(chosen, 0), pad([[1] * len(each) for each in chosen], 0)
    golden["batch"] = {"case_ids": BATCH, "value": short(model.value(ids, mask, torch.ones(ids.shape)))}
    return golden


def causal_goldens(model, tokenizer, eos):
    golden, tensors, examples = {"len_tokenizer": len(tokenizer), "cases": []}, {}, {}
    for name, (text, label) in CASES.items():
        prompt = f"Q: {text.strip()} A:"
        prompt_ids, full_ids = tokenizer.encode(prompt)[0], tokenizer.encode(f"{prompt} {label}")[0] + [eos]
        assert full_ids[:len(prompt_ids)] == prompt_ids and len(full_ids) < 240
        logits = model(torch.tensor([full_ids])).logits[0]
        log, labels = torch.log_softmax(logits.double(), -1), full_ids[len(prompt_ids):]
        path = list(prompt_ids)
        while len(path) < len(prompt_ids) + 8:
            best = model(torch.tensor([path])).logits[0, -1, :len(tokenizer)].topk(2)
            if best.values[0] - best.values[1] < 1e-3 or path[-1] == eos and len(path) > len(prompt_ids):
                break
            path.append(int(best.indices[0]))
        behind = logits[len(prompt_ids) - 1:-1]
        golden["cases"].append({
            "id": name, "prompt": prompt, "prompt_ids": prompt_ids, "full_ids": full_ids, "n_prompt": len(prompt_ids),
            "label_ids": labels, **scores(behind, labels, None)[0],
            "full_token_logprobs": short([float(log[at, id]) for at, id in enumerate(full_ids[1:])]),
            "greedy": {"ids": path[len(prompt_ids):]}})
        tensors[f"case.{name}.logits"], examples[name] = behind.contiguous(), (behind, labels)
    chosen = [case for case in golden["cases"] if case["id"] in BATCH]
    ids, mask = pad([case["full_ids"] for case in chosen], eos), pad([[1] * len(case["full_ids"]) for case in chosen], 0)
    logits = model(ids, attention_mask=mask).logits
    labels = pad([case["label_ids"] for case in chosen], -100).tolist()
    rows = torch.zeros(len(chosen), len(labels[0]), logits.shape[-1])
    for index, case in enumerate(chosen):
        first = case["n_prompt"] - 1
        rows[index, :len(case["label_ids"])] = logits[index, first:first + len(case["label_ids"])]
    losses = [scores(row, label, None)[0]["token_logprobs"] for row, label in zip(rows, labels)]
    kept = [logprob for row in losses for logprob in row if logprob is not None]
    golden["batch"] = {"case_ids": BATCH, "label_ids": labels, "ce_loss": short(-sum(kept) / len(kept))}
    tensors["batch.logits"] = rows
    examples["batch"] = (rows.flatten(0, 1), [label for row in labels for label in row])
    return golden, tensors, examples


NUMERIC = ["What is 7 + 52?", "Work out -3 - 4."]


def t5_numeric(model, tokenizer):
    exact = copy.deepcopy(model).double()
    prompts = []
    for text in NUMERIC:
        input_ids, numbers = tokenizer.encode(text)
        ids = torch.tensor([input_ids])
        encoded = exact.encode(ids, torch.ones_like(ids), torch.tensor([numbers]).double())

        def step(paths):
            ids = torch.tensor([[0, *path] for path in paths])
            logits, heads = exact.decode(encoded, ids, torch.ones(ids.shape).double())
            return logits[:, -1], torch.zeros(len(paths)) if heads is None else heads[:, -1].float()

        prompts.append({"text": text, "input_ids": input_ids} | number_distribution(step, tokenizer, 1, model.number_id))
        if model.kind == "t5-xval":
            prompts[-1]["number_embeddings"] = short([single(each) for each in numbers])
    return {"prompts": prompts}


def causal_numeric(model, tokenizer, eos):
    exact, prompts = copy.deepcopy(model).double(), []
    for text in NUMERIC:
        ids = tokenizer.encode(f"Q: {text} A:")[0]
        step = lambda paths: (exact(torch.tensor([[*ids, *path] for path in paths])).logits[:, -1], [0.0] * len(paths))
        prompts.append({"text": text, "input_ids": ids} | number_distribution(step, tokenizer, eos))
    return {"prompts": prompts}


def gemma_goldens(model, tokenizer, cases):
    golden, tensors = {"cases": [], "batch": {}}, {}
    for name, (text, label) in cases.items():
        label_ids = tokenizer.tokenizer.encode(label, add_special_tokens=False).ids + [1]
        case = {"id": name, "prompt": text, "label": label, "input_ids": tokenizer.encode(text)[0], "label_ids": label_ids,
                "decoder_input_ids": [2, *label_ids[:-1]]}
        ids = torch.tensor([case["input_ids"]])
        run = lambda rows: model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=torch.tensor([rows]))
        found = run(case["decoder_input_ids"])
        log = torch.log_softmax(found.logits[0].double(), -1)
        case["token_logprobs"] = [float(log[at, label]) for at, label in enumerate(label_ids)]
        answer = [2]
        while len(answer) < 13:
            best = run(answer).logits[0, -1].topk(2)
            if best.values[0] - best.values[1] < 1e-3:
                break
            answer.append(int(best.indices[0]))
        case["greedy"] = {"ids": answer}
        tensors |= {f"case.{name}.logits": found.logits, f"case.{name}.encoder_last_hidden": found.encoder_last_hidden_state[0, :, :8]}
        golden["cases"].append(case)
    fields = {field: pad([case[field] for case in golden["cases"]], filler) for field, filler in
              [("input_ids", 0), ("decoder_input_ids", 1)]}
    mask = pad([[1] * len(case["input_ids"]) for case in golden["cases"]], 0)
    tensors["batch.logits"] = model(**fields, attention_mask=mask).logits
    return {"golden.json": golden, "golden.safetensors": tensors}


# ---------------------------------------------------------------- the checkpoints


def save(name, tensors, config, tokenizer, dtype, goldens):
    folder = HERE / name
    (folder / "golden").mkdir(parents=True, exist_ok=True)
    write(folder / "config.json", config)
    tensors = {key: tensor.to(dtype).contiguous() for key, tensor in sorted(tensors.items())}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(folder)
    for file, content in goldens.items():
        path = folder / "golden" / file
        if file.endswith(".json"):
            write(path, content)
        else:
            save_file({key: tensor.float().contiguous() for key, tensor in content.items()}, path)
    print(f"{name}: {sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1024:.0f} KiB")


def rounded(module, dtype):
    """The weights as the file will hold them."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.to(dtype).float())
    return module


T5_SMALL = dict(d_model=8, d_kv=6, d_ff=20, num_layers=2, num_decoder_layers=2, num_heads=2, dropout_rate=0.0,
                pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)


def make_t5(name, architecture, tokenizer, seed, dtype=torch.float32, kind="t5", gated=False, vocab_size=None, numeric=False):
    vocab_size = vocab_size or len(tokenizer)
    config = T5Config(**T5_SMALL, vocab_size=vocab_size, feed_forward_proj="gated-gelu" if gated else "relu")
    number_id = tokenizer.ids["[NUM]"] if kind == "t5-xval" else None
    model = PaperT5(config, kind, number_id, tied=not gated)
    randomise(model, seed)
    written = {"architectures": [architecture], "model_type": "t5", "n_positions": 512, "is_encoder_decoder": True,
               "feed_forward_proj": "gated-gelu" if gated else "relu", "vocab_size": vocab_size, "layer_norm_epsilon": 1e-6,
               "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, **T5_SMALL}
    if gated:
        written["tie_word_embeddings"] = False
    if kind == "t5-regression-head":
        written |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if kind == "t5-rt":
        with torch.no_grad():
            for id in range(len(tokenizer)):
                if place := tokenizer.place(id):
                    model.number_embeddings[id] = torch.tensor(number_embedding(place[0] * 10.0**place[1], 8))
    if kind == "t5-xval":
        with torch.no_grad():
            model.num_head[2].bias.add_(20.0)
            # Answers contain some numbers.
            model.t5.shared.weight[number_id] *= 2
    rounded(model, dtype)
    tensors = model.names()
    if kind == "t5-rt":
        # In the trainer's files it is random and unused.
        tensors["shared.number_embeddings.weight"] = torch.randn(vocab_size, 8)
    with torch.no_grad():
        if kind == "t5-regression-head":
            goldens = {"golden.json": head_goldens(model, tokenizer)}
        else:
            golden, logits, examples = t5_goldens(model, tokenizer, with_long_label=name == "t5-ce")
            goldens = {"golden.json": golden, "golden.safetensors": logits}
            if kind != "t5-xval":
                goldens["ntloss.json"] = ntloss(examples, tokenizer)
            if numeric:
                goldens["numeric.json"] = t5_numeric(model, tokenizer)
    save(name, tensors, written, tokenizer, dtype, goldens)


def make_causal(name, model_class, config, tokenizer, seed, dtype=torch.float32, numeric=False):
    model = model_class(config).eval()
    randomise(model, seed)
    rounded(model, dtype)
    eos, tied = config.eos_token_id, config.tie_word_embeddings
    with torch.no_grad():
        golden, tensors, examples = causal_goldens(model, tokenizer, eos)
        goldens = {"golden.json": golden, "golden.safetensors": tensors, "ntloss.json": ntloss(examples, tokenizer)}
        if numeric:
            goldens["numeric.json"] = causal_numeric(model, tokenizer, eos)
    config.architectures = [model_class.__name__]
    weights = {key: tensor for key, tensor in model.state_dict().items() if not (tied and key == "lm_head.weight")}
    save(name, weights, json.loads(config.to_json_string(use_diff=True)), tokenizer, dtype, goldens)


# Windows, caps and heads differ between the stacks.
GEMMA_ENCODER = dict(
    hidden_size=16, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
    query_pre_attn_scalar=5, sliding_window=5, max_position_embeddings=512)
GEMMA_DECODER = dict(
    hidden_size=12, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    query_pre_attn_scalar=9, sliding_window=3, max_position_embeddings=128, final_logit_softcapping=2.5)


def make_gemma(name):
    if name == "t5gemma":
        tokenizer, cases = gemma_bpe(), CASES
        stack = lambda sizes, cap: dict(sizes, vocab_size=len(tokenizer) + 3, attn_logit_softcapping=cap)
        config = T5GemmaConfig(encoder=stack(GEMMA_ENCODER, 3.0), decoder=stack(GEMMA_DECODER, 2.0), vocab_size=len(tokenizer) + 3)
        model_class = T5GemmaForConditionalGeneration
    else:
        tokenizer = gemma_bpe(["<start_of_image>", "<end_of_image>", "<image>"])
        cases = CASES | {"image": ("See <end_of_image> and add 7.", " 12")}
        stack = lambda sizes: dict(sizes, vocab_size=len(tokenizer), rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})
        vision = dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, image_size=4, patch_size=2)
        marks = dict(boi_token_index=4, eoi_token_index=5, image_token_index=6)
        encoder = dict(text_config=stack(GEMMA_ENCODER | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
                       vision_config=vision, mm_tokens_per_image=4, **marks)
        heads = {key: GEMMA_ENCODER[key] for key in ["num_attention_heads", "num_key_value_heads", "head_dim"]}
        decoder = stack(GEMMA_DECODER | heads | {
            "hidden_size": 16, "layer_types": ["sliding_attention", "full_attention"], "attn_logit_softcapping": 2.0})
        config = T5Gemma2Config(encoder=encoder, decoder=decoder, eoi_token_index=5, image_token_index=6)
        model_class = T5Gemma2ForConditionalGeneration
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    randomise(model, 11)
    rounded(model, torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        written = json.loads((Path(folder) / "config.json").read_text())
        save(name, tensors, written, tokenizer, torch.bfloat16, gemma_goldens(model, tokenizer, cases))


def make_regresslm(name):
    """A T5Gemma's encoder with a linear head on the mean of its output. The export was trained with transformers 4.53's sdpa, which
    ignores the cap of scores and whose windows are one position shorter on both sides."""
    tokenizer = gemma_bpe()
    sizes = dict(GEMMA_ENCODER, vocab_size=len(tokenizer) + 2)
    stack = dict(sizes, sliding_window=sizes["sliding_window"] - 1, attn_logit_softcapping=None)
    config = T5GemmaConfig(encoder=stack, decoder=stack)
    config._attn_implementation = "eager"
    encoder, head = T5GemmaModel(config).encoder.eval(), torch.nn.Linear(sizes["hidden_size"], 1)
    for module in (encoder, head):
        randomise(module, 12)
        rounded(module, torch.bfloat16)
    cases = []
    for id, (text, _) in CASES.items():
        ids = tokenizer.encode(text)[0]
        value = head(encoder(input_ids=torch.tensor([ids])).last_hidden_state.mean(1))
        cases.append({"id": id, "prompt": text, "encoder_input_ids": ids, "value": short(float(value))})
    tensors = {f"model.model.encoder.{key}": tensor for key, tensor in encoder.state_dict().items() if "rotary" not in key}
    tensors |= {f"regression_head.{key}": tensor for key, tensor in head.state_dict().items()}
    backbone = {"model_type": "t5gemma", "encoder": sizes | {"attn_logit_softcapping": 3.0, "vocab_size": 7}, "decoder": {}}
    written = {"architectures": ["RegressLMForConditionalGeneration"], "model_type": "regresslm", "backbone_config": backbone,
               "encoder_vocab_size": sizes["vocab_size"], "decoder_vocab_size": 13, "use_regression_head": True, "pad_token_id": 0}
    save(name, tensors, written, tokenizer, torch.bfloat16, {"golden.json": {"cases": cases}})
    inner = HERE / name / "encoder_tokenizer"
    inner.mkdir(exist_ok=True)
    for file in ["tokenizer.json", "tokenizer_config.json"]:
        (HERE / name / file).replace(inner / file)


def make():
    model = train_sentencepiece()
    slow = lambda kind: SlowTokenizer(model, kind)
    make_t5("t5-ce", "T5ForConditionalGeneration", slow("AutoNumberTokenizer"), 1, vocab_size=128, numeric=True)
    make_t5("t5-ntl-was", "T5VanillaForNumberTokenLoss", slow("T5Custom_Tokenizer"), 2, torch.bfloat16, numeric=True)
    make_t5("t5-v11", "T5ForConditionalGeneration", fast_t5(model), 3, gated=True)
    make_t5("t5-rt", "T5RegressionModelRT", slow("RtTokenizer"), 4, torch.bfloat16, kind="t5-rt", numeric=True)
    make_t5("t5-xval", "T5RegressionModelXval", slow("XvalTokenizer"), 5, torch.bfloat16, kind="t5-xval", numeric=True)
    make_t5("t5-regression-head", "T5ForSequenceClassification", fast_t5(model), 6, kind="t5-regression-head")
    llama, gpt2, qwen = byte_fallback_bpe(), byte_level_bpe(False), byte_level_bpe(True)
    small = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=256, attn_implementation="eager")
    make_causal("llama-ntl", LlamaForCausalLM, LlamaConfig(
        **small, vocab_size=len(llama), bos_token_id=1, eos_token_id=2), llama, 7, torch.bfloat16, numeric=True)
    make_causal("gpt2", GPT2LMHeadModel, GPT2Config(
        n_embd=16, n_layer=2, n_head=2, n_positions=256, vocab_size=len(gpt2), bos_token_id=0, eos_token_id=0,
        attn_implementation="eager"), gpt2, 8, torch.float16)
    make_causal("granite", GraniteForCausalLM, GraniteConfig(
        **small, vocab_size=len(gpt2), bos_token_id=0, eos_token_id=0, tie_word_embeddings=True, embedding_multiplier=1.5,
        attention_multiplier=0.3, residual_multiplier=0.8, logits_scaling=2.0), gpt2, 9)
    make_causal("qwen3", Qwen3ForCausalLM, Qwen3Config(
        **small, head_dim=6, vocab_size=len(qwen) + 5, bos_token_id=None, eos_token_id=0, tie_word_embeddings=True), qwen, 10)
    make_gemma("t5gemma")
    make_gemma("t5gemma2")
    make_regresslm("regresslm-hf-head")


# ---------------------------------------------------------------- against the paper's own code


def verify(fixtures):
    texts = json.loads((fixtures / "tokenizers/golden_t5_tokenizers.json").read_text())
    kinds = {"t5-ce": "AutoNumberTokenizer", "t5-ntl-was": "T5Custom_Tokenizer", "t5-rt": "RtTokenizer", "t5-xval": "XvalTokenizer"}
    for name, kind in kinds.items():
        tokenizer = SlowTokenizer((fixtures / name / "spiece.model").read_bytes(), kind, extra_ids=100)
        rows = zip(texts["texts"], texts["classes"][kind]["rows"])
        same = [tokenizer.encode(text)[0] == row["ids"] for text, row in rows if "error" not in row]
        print(f"{name}: {sum(same)} of {len(same)} texts have the ids of {kind}")
    for name in ["t5-ce", "t5-ntl-was", "t5-v11", "t5-rt", "t5-rt-ntl", "t5-xval", "t5-regression-head"]:
        folder = fixtures / name
        written, golden = (json.loads((folder / file).read_text()) for file in ["config.json", "golden/golden.json"])
        kind = {"T5RegressionModelRT": "t5-rt", "T5RegressionModelXval": "t5-xval",
                "T5ForSequenceClassification": "t5-regression-head"}.get(written["architectures"][0], "t5")
        sizes = ["d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "vocab_size", "feed_forward_proj"]
        config = T5Config(**{size: written[size] for size in sizes}, dropout_rate=0.0)
        model = PaperT5(config, kind, 2100 if kind == "t5-xval" else None, tied=name != "t5-v11")
        tensors = load_file(folder / "model.safetensors")
        model.load(tensors)
        worst = defaultdict(float)
        if kind == "t5-rt":
            tokenizer = SlowTokenizer((folder / "spiece.model").read_bytes(), "RtTokenizer", extra_ids=100)
            rows = [number_embedding(place[0] * 10.0**place[1], 96) if (place := tokenizer.place(id)) else [0.0] * 96
                    for id in range(len(tokenizer))]
            worst["embedding"] = float((model.number_embeddings[:len(rows)] - torch.tensor(rows)).abs().max())
        far = lambda what, got, want: worst.__setitem__(what, max(worst[what], abs(got - want) / max(1, abs(want))))
        if kind != "t5-regression-head":
            logits_of = load_file(folder / "golden/golden.safetensors")
        for case in golden["cases"]:
            ids, numbers = tensors_of(case)
            if kind == "t5-regression-head":
                far("value", float(model.value(ids, torch.ones_like(ids), numbers)), case["value"])
                continue
            encoded = model.encode(ids, torch.ones_like(ids), numbers)
            logits, heads = model.decode(encoded, *tensors_of(case, "decoder_"))
            far("logits", float((logits - logits_of[f"case.{case['id']}.logits"]).abs().max()), 0)
            if kind == "t5-xval":
                for got, want in zip(heads[0].tolist(), case["number_predictions"]):
                    far("number", got, want)
                for field, with_faults in [("greedy_full_prefix", False), ("greedy", True)]:
                    want = case[field]["ids"][:13]
                    got = greedy(model, encoded, range(2101), with_faults)["ids"]
                    assert got == want[:len(got)], (name, case["id"], field)
                continue
            want, (found, _) = case["paper_losses"], scores(logits[0], case["label_ids"], [
                (id, token, value, cdf) for id, token, value, cdf in golden["number_tokens"]])
            for own in PAPER_NAMES:
                # The original sorts tokens of one value as it happens.
                if want[own] is not None and (own != "ntl_was_cdf_ordered" or name == "t5-ntl-was"):
                    far(own, found["paper_losses"][own], want[own])
        print(name, {what: f"{off:.1e}" for what, off in worst.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verify", type=Path, metavar="FIXTURES")
    parser.add_argument("--only", choices=["t5gemma", "t5gemma2", "regresslm-hf-head"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        if arguments.verify:
            verify(arguments.verify)
        elif arguments.only:
            make_regresslm(arguments.only) if arguments.only.startswith("regresslm") else make_gemma(arguments.only)
        else:
            make()

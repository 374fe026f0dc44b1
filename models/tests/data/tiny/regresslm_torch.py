"""Makes two tiny random checkpoints of RegressLM's own PyTorch model, and what torch gives on them in float64.

    python regresslm_torch.py

Needs torch. The decoder is PyTorch's; the encoders are written here and in regresslm.py from docs/MODEL_SPEC.md. They are checked
against the original code on larger fixtures (T5Gemma's in the export). The golden files are like those of regresslm.py, but
`masked` and `raw` have `values` and `special`, the probabilities of the values that are not finite.
"""

import json
import math
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import nn

import regresslm

HERE = Path(__file__).parent
CHARS = " abcdefghijklmnopqrstuvwxyz0123456789"
DIGITS = [f"<{digit}>" for digit in range(10)]
SPECIAL = {"INVALID": "INVALID", "NAN": "nan", "INF": "inf", "NINF": "-inf"}
P10 = dict(
    kind="p10", num_digits=1, exponent_range=1, wrappers=["add_special_values", "append_pad"], special_values=SPECIAL, num_tokens_per_obj=4,
    tokens=["<pad>", "<+>", "<->", *DIGITS, "<E-1>", "<E0>", "<E1>", "<INF>", "<INVALID>", "<NAN>", "<NINF>"])
NORMALIZED = dict(kind="normalized", base=3, length=3, wrappers=[], special_values=None, num_tokens_per_obj=3,
                  tokens=["<pad>", *DIGITS[:3]])
PROMPTS = [("short", "a"), ("other", "3 plus 4 Is"), ("cut", "the longest of all prompts 12"), ("digits", "0123456789 9")]


class Vanilla(nn.Module):
    """Layers that are normalised first, with rotary positions that rotate neighbouring elements."""

    def __init__(self, d, heads, layers, ff, vocabulary):
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, d)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = nn.Module()
            for name in ["q_proj", "k_proj", "v_proj", "out_proj"]:
                setattr(layer, name, nn.Linear(d, d))
            layer.linear1, layer.linear2 = nn.Linear(d, ff), nn.Linear(ff, d)
            layer.norm1, layer.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.layers.append(layer)
        self.norm = nn.LayerNorm(d)

    def rotated(self, x):
        width = x.shape[-1]
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 10000.0 ** (torch.arange(0, width, 2, dtype=x.dtype) / width)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            y = layer.norm1(x)
            q, k, v = (part(y).unflatten(-1, (self.heads, -1)) for part in [layer.q_proj, layer.k_proj, layer.v_proj])
            scores = torch.einsum("bqhd,bkhd->bhqk", self.rotated(q), self.rotated(k)) * q.shape[-1] ** -0.5
            x = x + layer.out_proj(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(-2))
            x = x + layer.linear2(layer.linear1(layer.norm2(x)).relu())
        return self.norm(x)


class Gemma(nn.Module):
    """T5Gemma's encoder."""

    def __init__(self, sizes, vocabulary):
        super().__init__()
        self.sizes = sizes
        random = np.random.default_rng(3)
        self.tensors = {
            f"encoder.{name}.weight": random.normal(0, 0.1 if len(shape) == 1 else shape[1] ** -0.5, shape).astype(np.float32)
            for name, shape in regresslm.shapes(sizes, False, 0, vocabulary)}

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination.update({prefix + name: torch.tensor(tensor) for name, tensor in self.tensors.items()})

    def forward(self, ids):
        return torch.tensor(regresslm.Stack(self.sizes, "encoder", self.tensors).forward(ids.numpy()))


class Model(nn.Module):
    def __init__(self, encoder, d, layers, ff, tokens, length):
        super().__init__()
        self.encoder = encoder
        self.tgt_tok_emb = nn.Embedding(tokens, d)
        layer = nn.TransformerDecoderLayer(d, 8, ff, 0.0, norm_first=True, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, layers)
        self.generator = nn.Linear(d, tokens)
        position, column = torch.arange(length)[:, None], torch.arange(0, d, 2) * (-math.log(10000.0) / d)
        table = torch.zeros(1, length, d)
        table[0, :, 0::2], table[0, :, 1::2] = (position * column.exp()).sin(), (position * column.exp()).cos()
        self.decoder_positional_encoding = nn.Module()
        self.decoder_positional_encoding.register_buffer("pe", table)

    @torch.no_grad()
    def logits(self, prompt, answers):
        """[B, T, V] after the start token and each token of the answers."""
        ids = torch.tensor([[0, *answer] for answer in answers])
        encoded = self.encoder(torch.tensor([prompt])).expand(len(ids), -1, -1)
        x = self.tgt_tok_emb(ids) + self.decoder_positional_encoding.pe[:, :ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=x.dtype)
        return self.generator(self.decoder(x, encoded, tgt_mask=mask)).numpy()


def allowed(numbers, path):
    """The tokens that may follow, and whether they have a probability of their own."""
    tokens = numbers["tokens"]
    number = path[len(path) // numbers["num_tokens_per_obj"] * numbers["num_tokens_per_obj"]:]
    ids = lambda wanted: [id for id, name in enumerate(tokens) if wanted(name.strip("<>"))]
    if numbers["kind"] == "normalized":
        return ids(str.isdigit), True
    if len(number) == 3:
        return [0], False
    if number and tokens[number[0]].strip("<>") in SPECIAL:
        return [number[0]], True
    kinds = [lambda name: name in "+-" or name in SPECIAL, str.isdigit, lambda name: name[0] == "E"]
    return ids(kinds[len(number)]), True


def value(numbers, ids):
    names = [numbers["tokens"][id].strip("<>") for id in ids]
    if numbers["kind"] == "normalized":
        return float(sum(Fraction(int(digit), 3 ** (place + 1)) for place, digit in enumerate(names)))
    if names[0] in SPECIAL:
        return names[0]
    return float(Fraction(int(names[1])) * Fraction(10) ** int(names[2][1:]) * (-1 if names[0] == "-" else 1)) + 0.0


def distributions(model, numbers, outputs, prompt, is_masked):
    """The probabilities of all values of each number."""
    length, paths, found = numbers["num_tokens_per_obj"], [((), 1.0)], []
    for position in range(length * outputs):
        weights = np.exp(model.logits(prompt, [path for path, _ in paths])[:, -1])
        longer = []
        for row, (path, probability) in enumerate(paths):
            ids, is_free = allowed(numbers, path)
            total = weights[row, ids].sum() if is_masked or not is_free else weights[row].sum()
            longer += [((*path, id), probability * weights[row, id] / total) for id in ids]
        paths = longer
        if position % length == length - 1:
            values = {}
            for path, probability in paths:
                key = value(numbers, path[-length:])
                values[key] = values.get(key, 0.0) + probability
            finite = sorted(key for key in values if not isinstance(key, str))
            found.append({"values": [[key, values[key]] for key in finite], "special": {key: values[key] for key in values if key in SPECIAL}})
    return found


def greedy(model, numbers, outputs, prompt):
    path = []
    for _ in range(numbers["num_tokens_per_obj"] * outputs):
        logits = model.logits(prompt, [path])[0, -1]
        path.append(max(allowed(numbers, path)[0], key=lambda id: logits[id]))
    return path


def make(name, encoder, described, d, numbers, outputs):
    torch.manual_seed(5)
    ff, layers, length = 20, 2, numbers["num_tokens_per_obj"] * outputs
    model = Model(encoder, d, layers, ff, len(numbers["tokens"]), length + 1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.25 if parameter.dim() > 1 else 0.1)
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.weight.data += 1.0
    # The original also stores buffers that are derived, and the state of training.
    state = {f"encoder_decoder.{key}": tensor.clone() for key, tensor in model.state_dict().items()}
    state["encoder_decoder.encoder.rotary_pos_emb.inv_freq"] = torch.ones(2)
    folder = HERE / name
    (folder / "golden").mkdir(parents=True, exist_ok=True)
    torch.save({"model_state": state, "optimizer_state": {"step": 3, "lr": [0.1, None, True]}, "global_step": 7}, folder / "checkpoint.pt")
    description = {
        "format": "regresslm-pt", "version": 1, "checkpoint": "checkpoint.pt", "state_key": "model_state", "prefix": "encoder_decoder.",
        "encoder": {**described, "vocab_size": len(CHARS) + 2, "pad_id": 0, "max_input_len": 20},
        "encoder_tokenizer": {"kind": "character", "chars": CHARS, "pad_id": 0, "unk_id": 1, "first_char_id": 2},
        "decoder": {"vocab_size": len(numbers["tokens"]), "d_model": d, "layers": layers, "heads": 8, "d_ff": ff, "activation": "relu",
                    "norm": "pre", "final_norm": False, "layer_norm_eps": 1e-5, "positions": "sinusoidal", "max_len": length + 1,
                    "start_id": 0, "pad_id": 0},
        "number_tokenizer": numbers, "max_num_objs": outputs, "decode_len": length, "examples": ["3 plus 4"]}
    (folder / "ntl.json").write_text(json.dumps(description, separators=(",", ":")))
    model.double().eval()
    cases, logits = [], {}
    for id, text in PROMPTS:
        prompt = [CHARS.index(character) + 2 if character in CHARS else 1 for character in text][:20]
        best = greedy(model, numbers, outputs, prompt)
        logits[f"case.{id}.logits"] = model.logits(prompt, [best[:-1]])[0]
        cases.append({"id": id, "prompt": text, "encoder_input_ids": prompt, "greedy": best,
                      **{kind: distributions(model, numbers, outputs, prompt, kind == "masked") for kind in ["masked", "raw"]}})
    (folder / "golden/golden.json").write_text(json.dumps({"cases": cases}, separators=(",", ":")))
    regresslm.save_tensors(folder / "golden/golden.safetensors", logits)


def main():
    torch.manual_seed(4)
    layers = dict(type="vanilla", d_model=16, layers=2, heads=4, d_ff=24, activation="relu", norm="pre", layer_norm_eps=1e-5,
                  rope_base=10000, rope_layout="interleaved")
    make("regresslm-pt", Vanilla(16, 4, 2, 24, len(CHARS) + 2), layers, 16, P10, 2)
    sizes = regresslm.ENCODER
    make("regresslm-pt-gemma", Gemma(sizes, len(CHARS) + 2), {"type": "t5gemma", "config": sizes}, sizes["hidden_size"], NORMALIZED, 1)


if __name__ == "__main__":
    main()

"""Makes the tiny random RegressLM of this folder, and what a float64 computation of its own gives on it.

    python regresslm.py

Needs numpy only, and the tokenizer of `regresslm-hf-head`. The network is written here from its description in docs/MODEL_SPEC.md
and checked against the classes of the export on larger fixtures. Weights are drawn at random and stored as float32.

`golden/golden.json`, for each case: ids, greedy ids under the mask, `numbers[]` with the probabilities of all values of both numbers
of an answer (the second one marginal over the first), masked and raw. `golden.safetensors` has the logits of the greedy answer.
"""

import json
import shutil
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
NAME = "regresslm-hf-p10"
ENCODER = dict(vocab_size=7, hidden_size=16, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
               head_dim=6, query_pre_attn_scalar=5, sliding_window=5, max_position_embeddings=512, attn_logit_softcapping=3.0,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"])
DECODER = dict(vocab_size=7, hidden_size=12, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
               head_dim=8, query_pre_attn_scalar=9, sliding_window=3, max_position_embeddings=128, attn_logit_softcapping=3.0,
               final_logit_softcapping=6.0, layer_types=["sliding_attention", "full_attention"])
# One digit and exponents from -1 to 1; exponents are sorted as strings.
TOKENS = ["<pad>", "<+>", "<->", *(f"<{digit}>" for digit in range(10)), "<E-1>", "<E0>", "<E1>"]
ALLOWED = [range(1, 3), range(3, 13), range(13, 16)]
OUTPUTS = 2
EPS = 1e-6


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (1 + weight)


def rotated(x):
    """RoPE of [B, T, heads, head_dim], half by half."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] / 10000.0 ** (np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Stack:
    def __init__(self, sizes, prefix, tensors):
        self.sizes, self.prefix, self.tensors = sizes, prefix, tensors

    def weight(self, name):
        return self.tensors[f"{self.prefix}.{name}.weight"].astype(np.float64)

    def heads(self, x, name):
        projected = x @ self.weight(name).T
        return projected.reshape(*x.shape[:2], -1, self.sizes["head_dim"])

    def attention(self, layer, x, keys_from, mask, is_rotated):
        q, k, v = (self.heads(source, f"{layer}.{part}_proj") for source, part in [(x, "q"), (keys_from, "k"), (keys_from, "v")])
        if is_rotated:
            q, k = rotated(q), rotated(k)
        groups = self.sizes["num_attention_heads"] // self.sizes["num_key_value_heads"]
        k, v = np.repeat(k, groups, 2), np.repeat(v, groups, 2)
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) * self.sizes["query_pre_attn_scalar"] ** -0.5
        scores = np.where(mask, scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("bhqk,bkhd->bqhd", scores / scores.sum(-1, keepdims=True), v)
        return mixed.reshape(*x.shape[:2], -1) @ self.weight(f"{layer}.o_proj").T

    def forward(self, ids, encoded=None):
        sizes = self.sizes
        x = self.weight("embed_tokens")[ids] * sizes["hidden_size"] ** 0.5
        distance = np.arange(x.shape[1])[:, None] - np.arange(x.shape[1])
        for index, kind in enumerate(sizes["layer_types"]):
            name = f"layers.{index}"
            near = np.abs(distance) < sizes["sliding_window"] if kind == "sliding_attention" else True
            mask = near & (distance >= 0) if encoded is not None else near & (distance == distance)

            def part(x, block, compute):
                inner = compute(norm(x, self.weight(f"{name}.pre_{block}_layernorm")))
                return x + norm(inner, self.weight(f"{name}.post_{block}_layernorm"))

            x = part(x, "self_attn", lambda y: self.attention(f"{name}.self_attn", y, y, mask, True))
            if encoded is not None:
                x = part(x, "cross_attn", lambda y: self.attention(f"{name}.cross_attn", y, encoded, True, False))
            gate = lambda y: y * 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * y**3)))
            mlp = lambda y: (gate(y @ self.weight(f"{name}.mlp.gate_proj").T) * (y @ self.weight(f"{name}.mlp.up_proj").T)
                             ) @ self.weight(f"{name}.mlp.down_proj").T
            x = part(x, "feedforward", mlp)
        return norm(x, self.weight("norm"))


def shapes(sizes, is_decoder, encoder_width, vocabulary):
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    queries, keys = (sizes[name] * sizes["head_dim"] for name in ["num_attention_heads", "num_key_value_heads"])
    yield "embed_tokens", (vocabulary, hidden)
    yield "norm", (hidden,)
    for index in range(sizes["num_hidden_layers"]):
        for attention, width in [("self_attn", hidden)] + [("cross_attn", encoder_width)] * is_decoder:
            yield f"layers.{index}.{attention}.q_proj", (queries, hidden)
            yield f"layers.{index}.{attention}.k_proj", (keys, width)
            yield f"layers.{index}.{attention}.v_proj", (keys, width)
            yield f"layers.{index}.{attention}.o_proj", (hidden, queries)
        for block in ["self_attn", "feedforward"] + ["cross_attn"] * is_decoder:
            yield f"layers.{index}.pre_{block}_layernorm", (hidden,)
            yield f"layers.{index}.post_{block}_layernorm", (hidden,)
        yield f"layers.{index}.mlp.gate_proj", (inner, hidden)
        yield f"layers.{index}.mlp.up_proj", (inner, hidden)
        yield f"layers.{index}.mlp.down_proj", (hidden, inner)


def save_tensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = np.ascontiguousarray(tensor, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def value(ids):
    sign, digit, exponent = (TOKENS[id].strip("<>") for id in ids)
    exact = Fraction(int(digit)) * Fraction(10) ** int(exponent[1:]) * (-1 if sign == "-" else 1)
    return float(exact) + 0.0


class Model:
    def __init__(self, tensors):
        self.encoder = Stack(ENCODER, "model.model.encoder", tensors)
        self.decoder = Stack(DECODER, "model.model.decoder", tensors)
        self.head = tensors["model.lm_head.out_proj.weight"].astype(np.float64)

    def logits(self, prompt, answers):
        """[B, T, V] after the start token and each token of the answers."""
        encoded = self.encoder.forward(np.array([prompt]))
        ids = np.array([[0, *answer] for answer in answers])
        hidden = self.decoder.forward(ids, np.repeat(encoded, len(ids), 0))
        cap = DECODER["final_logit_softcapping"]
        return cap * np.tanh(hidden @ self.head.T / cap)

    def greedy(self, prompt):
        ids = []
        for position in range(3 * OUTPUTS):
            logits = self.logits(prompt, [ids])[0, -1]
            ids.append(max(ALLOWED[position % 3], key=lambda id: logits[id]))
        return ids

    def numbers(self, prompt, is_masked):
        """The probabilities of all values of each number."""
        paths, found = [((), 1.0)], []
        for position in range(3 * OUTPUTS):
            allowed = list(ALLOWED[position % 3])
            weights = np.exp(self.logits(prompt, [path for path, _ in paths])[:, -1])
            totals = weights[:, allowed].sum(1) if is_masked else weights.sum(1)
            paths = [((*path, id), probability * weights[row, id] / totals[row])
                     for row, (path, probability) in enumerate(paths) for id in allowed]
            if position % 3 == 2:
                values = {}
                for path, probability in paths:
                    key = value(path[-3:])
                    values[key] = values.get(key, 0.0) + probability
                found.append([[key, values[key]] for key in sorted(values)])
        return found


def main():
    head = HERE / "regresslm-hf-head"
    config = json.loads((head / "config.json").read_text())
    cases = json.loads((head / "golden/golden.json").read_text())["cases"]
    vocabulary, hidden = config["encoder_vocab_size"], ENCODER["hidden_size"]
    random = np.random.default_rng(14)
    tensors = {}
    for prefix, sizes, is_decoder, tokens in [("encoder", ENCODER, False, vocabulary), ("decoder", DECODER, True, len(TOKENS))]:
        for name, shape in shapes(sizes, is_decoder, hidden, tokens):
            spread = 0.1 if len(shape) == 1 else 0.5 if name == "embed_tokens" else shape[1] ** -0.5
            tensors[f"model.model.{prefix}.{name}.weight"] = random.normal(0, spread, shape).astype(np.float32)
    shape = len(TOKENS), DECODER["hidden_size"]
    tensors["model.lm_head.out_proj.weight"] = random.normal(0, 1.5 * shape[1] ** -0.5, shape).astype(np.float32)
    tensors["model.final_logits_bias"] = np.zeros((1, len(TOKENS)), np.float32)
    written = {"architectures": ["RegressLMForConditionalGeneration"], "model_type": "regresslm",
               "backbone_config": {"model_type": "t5gemma", "encoder": ENCODER, "decoder": DECODER},
               "encoder_vocab_size": vocabulary, "decoder_vocab_size": len(TOKENS), "decoder_tokenizer": "P10", "num_digits": 1,
               "exponent_range": 1, "num_tokens_per_obj": 3, "max_num_objs": OUTPUTS, "use_regression_head": False, "pad_token_id": 0}
    folder = HERE / NAME
    (folder / "golden").mkdir(parents=True, exist_ok=True)
    (folder / "encoder_tokenizer").mkdir(exist_ok=True)
    for file in (head / "encoder_tokenizer").iterdir():
        shutil.copyfile(file, folder / "encoder_tokenizer" / file.name)
    (folder / "config.json").write_text(json.dumps(written, separators=(",", ":")))
    (folder / "p10_vocab.json").write_text(json.dumps({name: id for id, name in enumerate(TOKENS)}, separators=(",", ":")))
    save_tensors(folder / "model.safetensors", tensors)
    model, golden, logits = Model(tensors), [], {}
    for case in cases:
        prompt = case["encoder_input_ids"]
        greedy = model.greedy(prompt)
        logits[f"case.{case['id']}.logits"] = model.logits(prompt, [greedy[:-1]])[0]
        golden.append({"id": case["id"], "prompt": case["prompt"], "encoder_input_ids": prompt, "greedy": greedy,
                       "masked": model.numbers(prompt, True), "raw": model.numbers(prompt, False)})
    (folder / "golden/golden.json").write_text(json.dumps({"cases": golden}, separators=(",", ":")))
    save_tensors(folder / "golden/golden.safetensors", logits)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes llama-ntl.gguf with llama.cpp's own writer, from ../tiny/llama-ntl.

Needs the packages gguf, ml_dtypes, numpy and safetensors.
"""
import json
import pathlib

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parent / "tiny" / "llama-ntl"
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Makes the two elements of each rotated pair neighbours."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def add_tokenizer(writer: GGUFWriter, tokenizer: dict) -> None:
    vocab = tokenizer["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    ranks = {"".join(merge): rank for rank, merge in enumerate(tokenizer["model"]["merges"])}
    special = {token["content"] for token in tokenizer["added_tokens"]}
    kinds = []
    for token in tokens:
        if token in special:
            kinds.append(TokenType.UNKNOWN if token == "<unk>" else TokenType.CONTROL)
        else:
            kinds.append(TokenType.BYTE if token.startswith("<0x") else TokenType.NORMAL)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(ranks.get(token, 10_000)) for token in tokens])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")


def main() -> None:
    config = json.loads((SOURCE / "config.json").read_text())
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = GGUFWriter(HERE / "llama-ntl.gguf", "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, json.loads((SOURCE / "tokenizer.json").read_text()))
    for name, tensor in load_file(SOURCE / "model.safetensors").items():
        if name in ENDS:
            stored = ENDS[name]
        else:
            layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            stored = f"blk.{layer}.{NAMES[part]}.weight"
        if "attn_q." in stored:
            tensor = paired(tensor, heads)
        if "attn_k." in stored:
            tensor = paired(tensor, key_heads)
        if tensor.ndim == 1:
            writer.add_tensor(stored, tensor.astype(np.float32))
        else:
            rows = np.ascontiguousarray(tensor.astype(ml_dtypes.bfloat16)).view(np.uint8)
            writer.add_tensor(stored, rows, raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()

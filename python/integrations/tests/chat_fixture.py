"""A chat checkpoint whose next token depends only on the last one, so that tests know its distributions in advance.

It is a Llama with a single layer that adds nothing: embeddings are one-hot, and the output matrix contains the logarithms of a
table of transitions. Its tokens are the 256 bytes and, as separate tokens, the texts of the table. Standard library only."""

import json
import math
import struct

END = "</s>"
HEAD = 16
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}>"


def byte_names():
    """Returns the name of each byte in byte-level BPE: printable bytes as themselves, the others as characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def tokenizer(texts):
    """Returns tokenizer.json, and the id of each text."""
    vocabulary = {name: byte for byte, name in byte_names().items()} | {END: 256}
    ids = {text: ord(text) for text in texts if len(text) == 1} | {END: 256}
    ids |= {text: 257 + place for place, text in enumerate(text for text in texts if len(text) > 1)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": place, "content": text, "special": text == END, **flags} for text, place in ids.items() if place > 255]
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    return {
        "version": "1.0", "added_tokens": sorted(added, key=lambda token: token["id"]), "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model,
    }, ids


def write(folder, transitions):
    """Writes a checkpoint. `transitions` maps the text of a token to {text: probability} of the next one. The first token
    follows `>`; a token that is not in the table is followed by the end of sequence."""
    texts = list(dict.fromkeys([text for text in transitions] + [text for row in transitions.values() for text in row]))
    described, ids = tokenizer([text for text in texts if text != END])
    size = 32 * math.ceil((max(ids.values()) + 1) / 32)
    # The norm scales a one-hot vector to this length.
    scale = math.sqrt(size)
    output = [[-40.0 / scale] * size for _ in range(size)]
    for last in range(size):
        output[ids[END]][last] = 0.0
    for text, row in transitions.items():
        output[ids[END]][ids[text]] = -40.0 / scale
        for following, probability in row.items():
            output[ids[following]][ids[text]] = math.log(probability) / scale
    one_hot = [[float(row == column) for column in range(size)] for row in range(size)]
    ones, narrow, wide = [1.0] * size, [[0.0] * size] * HEAD, [[0.0] * HEAD] * size
    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": one_hot, "lm_head.weight": output, "model.norm.weight": ones}
    tensors |= {f"{layer}{norm}_layernorm.weight": ones for norm in ("input", "post_attention")}
    tensors |= {f"{layer}self_attn.{name}_proj.weight": narrow for name in "qkv"}
    tensors |= {f"{layer}mlp.{name}_proj.weight": narrow for name in ("gate", "up")}
    tensors |= {f"{layer}{name}_proj.weight": wide for name in ("self_attn.o", "mlp.down")}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": size, "intermediate_size": HEAD,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD, "vocab_size": size,
        "max_position_embeddings": 16384, "rms_norm_eps": 1e-12, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "eos_token_id": ids[END], "bos_token_id": None, "torch_dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": TEMPLATE}))
    return folder


def safetensors(tensors):
    """Returns vectors and matrices in the safetensors format, float32."""
    header, data = {}, b""
    for name, rows in tensors.items():
        shape = [len(rows), len(rows[0])] if isinstance(rows[0], list) else [len(rows)]
        flat = [number for row in rows for number in row] if len(shape) == 2 else rows
        piece = struct.pack(f"<{len(flat)}f", *flat)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data

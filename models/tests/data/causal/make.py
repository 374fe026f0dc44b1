"""Makes the tiny random checkpoints of this folder and what Hugging Face computes on them.

    python make.py         writes every folder
    python make.py NAME... writes these folders

Written on the CPU in float32, the folders of Llama, Mistral, Qwen2 and GPT-2 with transformers 4.45.2 and torch
1.13, the others with transformers 5.23.0 and torch 2.15.0. Each folder holds a `config.json`, a
`model.safetensors`, and `golden.safetensors` with `input_ids` [T] and `logits` [T, vocab].
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig,
    LlamaForCausalLM, MistralConfig, MistralForCausalLM, Olmo2Config, Olmo2ForCausalLM, Olmo3Config,
    Olmo3ForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, SmolLM3Config,
    SmolLM3ForCausalLM,
)

TOKENS = 40
SMALL = dict(
    vocab_size=36, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, initializer_range=0.5,
    attn_implementation="eager",
)


def rope(**scaling):
    return LlamaForCausalLM, LlamaConfig(**SMALL, rope_scaling=scaling)


VARIANTS = {
    "llama-linear": rope(rope_type="linear", factor=2.5),
    "llama-dynamic": rope(type="dynamic", factor=2.0),
    "llama-llama3": rope(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16,
    ),
    "llama-yarn": rope(rope_type="yarn", factor=4.0, beta_fast=4.0, original_max_position_embeddings=16),
    "llama-biases": (
        LlamaForCausalLM,
        LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, head_dim=6, tie_word_embeddings=True),
    ),
    "mistral-window": (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=5)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SMALL, rope_theta=1e6)),
    "gpt2-by-depth": (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=36, n_positions=64, n_embd=16, n_layer=3, n_head=2, n_inner=40, bos_token_id=1,
            eos_token_id=2, initializer_range=0.5, activation_function="gelu",
            scale_attn_by_inverse_layer_idx=True, attn_implementation="eager",
        ),
    ),
    # The last layer has no rotary positions.
    "smollm3": (
        SmolLM3ForCausalLM,
        SmolLM3Config(**SMALL | dict(num_hidden_layers=4, intermediate_size=12), pad_token_id=0),
    ),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**SMALL)),
    "olmo3": (
        Olmo3ForCausalLM,
        Olmo3Config(
            **SMALL, sliding_window=5, layer_types=["sliding_attention", "full_attention"],
            rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=4.0, original_max_position_embeddings=16),
        ),
    ),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config(
            **SMALL, head_dim=6, query_pre_attn_scalar=6, sliding_window=5, attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0, pad_token_id=0,
        ),
    ),
    # All layers except the last one have a window.
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **SMALL | dict(num_hidden_layers=6, intermediate_size=8), head_dim=6, query_pre_attn_scalar=6,
            sliding_window=5, pad_token_id=0,
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=10_000.0),
                full_attention=dict(rope_type="linear", factor=2.0, rope_theta=1000.0),
            ),
        ),
    ),
    "phi3": (
        Phi3ForCausalLM,
        Phi3Config(
            **SMALL | dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256),
            sliding_window=7, original_max_position_embeddings=64, partial_rotary_factor=0.75, pad_token_id=0,
            tie_word_embeddings=True,
            rope_scaling=dict(rope_type="longrope", short_factor=[1.0, 1.5, 3.0], long_factor=[1.0, 4.0, 16.0]),
        ),
    ),
}

for name in sys.argv[1:] or VARIANTS:
    model_class, config = VARIANTS[name]
    torch.manual_seed(sum(map(ord, name)))
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and norms start as constants
                parameter.add_(torch.randn_like(parameter) * 0.3)
        input_ids = torch.randint(3, 36, (1, TOKENS))
        logits = model(input_ids).logits[0]
    folder = Path(__file__).parent / name
    folder.mkdir(exist_ok=True)
    config.architectures = [model_class.__name__]
    (folder / "config.json").write_text(json.dumps(config.to_diff_dict(), indent=1, sort_keys=True) + "\n")
    tied = config.tie_word_embeddings
    weights = {key: value.contiguous() for key, value in model.state_dict().items()
               if not (tied and key == "lm_head.weight")}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    golden = {"input_ids": input_ids[0], "logits": logits.contiguous()}
    save_file(golden, folder / "golden.safetensors")
    print(name, float(logits.abs().max()))

//! Llama: configuration and tensors as Hugging Face writes them.

use super::t5::keep;
use super::tensors::{Planned, filled, random};

/// As the originals'.
pub(super) const VOCABULARY: usize = 32_000;

/// Shape of a Llama.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LlamaShape {
    hidden: usize,
    wide: usize,
    layers: usize,
    heads: usize,
    key_heads: usize,
}

impl LlamaShape {
    /// `widths` are those of the residual stream and of the feed-forward layers, `heads` those of queries and of keys.
    pub const fn new(widths: (usize, usize), layers: usize, heads: (usize, usize)) -> Self {
        Self { hidden: widths.0, wide: widths.1, layers, heads: heads.0, key_heads: heads.1 }
    }

    /// With the ids that the tokenizer has: 0 begins a text and 1 ends it.
    pub(super) fn config(&self) -> String {
        let Self { hidden, wide, layers, heads, key_heads } = *self;
        format!(
            r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {VOCABULARY},
"hidden_size": {hidden}, "intermediate_size": {wide}, "num_hidden_layers": {layers}, "num_attention_heads": {heads},
"num_key_value_heads": {key_heads}, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
"rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1}}"#
        )
    }

    pub(super) fn tensors(&self) -> Vec<Planned> {
        let (hidden, wide) = (self.hidden, self.wide);
        let keys = hidden / self.heads * self.key_heads;
        let mut tensors = vec![random("model.embed_tokens.weight", 1.0, &[VOCABULARY, hidden])];
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            for (part, outputs, inputs) in [
                ("self_attn.q_proj", hidden, hidden),
                ("self_attn.k_proj", keys, hidden),
                ("self_attn.v_proj", keys, hidden),
                ("self_attn.o_proj", hidden, hidden),
                ("mlp.gate_proj", wide, hidden),
                ("mlp.up_proj", wide, hidden),
                ("mlp.down_proj", hidden, wide),
            ] {
                tensors.push(random(name(part), keep(inputs), &[outputs, inputs]));
            }
            tensors.push(filled(name("input_layernorm"), 1.0, hidden));
            tensors.push(filled(name("post_attention_layernorm"), 1.0, hidden));
        }
        tensors.push(filled("model.norm.weight", 1.0, hidden));
        tensors.push(random("lm_head.weight", keep(hidden), &[VOCABULARY, hidden]));
        tensors
    }
}

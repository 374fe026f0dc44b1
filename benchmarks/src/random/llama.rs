//! Llama: configuration and tensors as Hugging Face writes them.

use super::Plan;
use super::tensors::{Planned, filled, random, scale_for};

const VOCABULARY: usize = 32_000;

pub(super) struct LlamaShape {
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
}

impl LlamaShape {
    pub(super) const fn new(
        hidden: usize,
        intermediate: usize,
        layers: usize,
        heads: usize,
        kv_heads: usize,
    ) -> Self {
        Self { hidden, intermediate, layers, heads, kv_heads }
    }

    pub(super) fn plan(&self) -> Plan {
        Plan { vocabulary: VOCABULARY, config: self.config(), tensors: self.tensors(), answers: None }
    }

    /// In the matching tokenizer, id 0 begins a text and id 1 ends it.
    fn config(&self) -> String {
        let Self { hidden, intermediate, layers, heads, kv_heads } = *self;
        format!(
            r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {VOCABULARY},
"hidden_size": {hidden}, "intermediate_size": {intermediate}, "num_hidden_layers": {layers}, "num_attention_heads": {heads},
"num_key_value_heads": {kv_heads}, "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
"rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1}}"#
        )
    }

    fn tensors(&self) -> Vec<Planned> {
        let hidden = self.hidden;
        let intermediate = self.intermediate;
        let keys = hidden / self.heads * self.kv_heads;
        let mut tensors = vec![random("model.embed_tokens.weight", 1.0, &[VOCABULARY, hidden])];
        for layer in 0..self.layers {
            for (part, outputs, inputs) in [
                ("self_attn.q_proj", hidden, hidden),
                ("self_attn.k_proj", keys, hidden),
                ("self_attn.v_proj", keys, hidden),
                ("self_attn.o_proj", hidden, hidden),
                ("mlp.gate_proj", intermediate, hidden),
                ("mlp.up_proj", intermediate, hidden),
                ("mlp.down_proj", hidden, intermediate),
            ] {
                tensors.push(random(weight_name(layer, part), scale_for(inputs), &[outputs, inputs]));
            }
            tensors.push(filled(weight_name(layer, "input_layernorm"), 1.0, hidden));
            tensors.push(filled(weight_name(layer, "post_attention_layernorm"), 1.0, hidden));
        }
        tensors.push(filled("model.norm.weight", 1.0, hidden));
        tensors.push(random("lm_head.weight", scale_for(hidden), &[VOCABULARY, hidden]));
        tensors
    }
}

fn weight_name(layer: usize, part: &str) -> String {
    format!("model.layers.{layer}.{part}.weight")
}

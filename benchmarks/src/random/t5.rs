//! T5 v1.0 and v1.1: configuration and tensors as Hugging Face writes them.

use super::Plan;
use super::tensors::{Planned, filled, random, scale_for};

/// Size of the original vocabulary, including its padding.
const VOCABULARY: usize = 32_128;

/// Width of a head in every original model up to t5-large.
const HEAD_WIDTH: usize = 64;

/// Standard deviation of embeddings that also serve as the output layer. Hugging Face initialises them with
/// 1, which makes a random model repeat its last token. The last norm compensates for the difference.
const TIED_DEVIATION: f64 = 0.1;

pub(super) struct T5Shape {
    pub(super) d_model: usize,
    pub(super) d_ff: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) head_width: usize,
    /// Whether the layers follow v1.1: gated feed-forward layers, and an output layer separate from the
    /// embeddings.
    pub(super) gated: bool,
}

impl T5Shape {
    pub(super) const fn v1_0(d_model: usize, d_ff: usize, layers: usize, heads: usize) -> Self {
        Self { d_model, d_ff, layers, heads, head_width: HEAD_WIDTH, gated: false }
    }

    pub(super) fn plan(&self) -> Plan {
        Plan { vocabulary: VOCABULARY, config: self.config(), tensors: self.tensors(), answers: None }
    }

    fn config(&self) -> String {
        let Self { d_model, d_ff, layers, heads, head_width, gated } = *self;
        let (activation, tied) = if gated { ("gated-gelu", false) } else { ("relu", true) };
        format!(
            r#"{{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": {VOCABULARY},
"d_model": {d_model}, "d_kv": {head_width}, "d_ff": {d_ff}, "num_layers": {layers}, "num_decoder_layers": {layers},
"num_heads": {heads}, "feed_forward_proj": "{activation}", "tie_word_embeddings": {tied}, "torch_dtype": "float32",
"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}}"#
        )
    }

    /// Initialised as in Hugging Face, except for [`TIED_DEVIATION`].
    fn tensors(&self) -> Vec<Planned> {
        let embeddings = if self.gated { 1.0 } else { TIED_DEVIATION };
        let mut tensors = vec![random("shared.weight", embeddings, &[VOCABULARY, self.d_model])];
        for (stack, attentions) in
            [("encoder", &["SelfAttention"][..]), ("decoder", &["SelfAttention", "EncDecAttention"])]
        {
            for layer in 0..self.layers {
                self.add_block(&mut tensors, &format!("{stack}.block.{layer}.layer"), attentions);
            }
            let bias = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
            tensors.push(random(bias, scale_for(self.d_model), &[32, self.heads]));
            let norm = if stack == "decoder" { embeddings.recip() } else { 1.0 };
            tensors.push(filled(format!("{stack}.final_layer_norm.weight"), norm, self.d_model));
        }
        if self.gated {
            tensors.push(random("lm_head.weight", scale_for(self.d_model), &[VOCABULARY, self.d_model]));
        }
        tensors
    }

    fn add_block(&self, tensors: &mut Vec<Planned>, block: &str, attentions: &[&str]) {
        let d_model = self.d_model;
        let d_ff = self.d_ff;
        let inner = self.heads * self.head_width;
        for (index, attention) in attentions.iter().enumerate() {
            tensors.push(filled(format!("{block}.{index}.layer_norm.weight"), 1.0, d_model));
            for (part, scale, shape) in [
                ("q", scale_for(d_model * HEAD_WIDTH), [inner, d_model]),
                ("k", scale_for(d_model), [inner, d_model]),
                ("v", scale_for(d_model), [inner, d_model]),
                ("o", scale_for(inner), [d_model, inner]),
            ] {
                tensors.push(random(format!("{block}.{index}.{attention}.{part}.weight"), scale, &shape));
            }
        }
        let name = format!("{block}.{}", attentions.len());
        tensors.push(filled(format!("{name}.layer_norm.weight"), 1.0, d_model));
        let inputs = if self.gated { &["wi_0", "wi_1"][..] } else { &["wi"] };
        for input in inputs {
            let input = format!("{name}.DenseReluDense.{input}.weight");
            tensors.push(random(input, scale_for(d_model), &[d_ff, d_model]));
        }
        tensors.push(random(format!("{name}.DenseReluDense.wo.weight"), scale_for(d_ff), &[d_model, d_ff]));
    }
}

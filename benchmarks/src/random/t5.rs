//! T5 v1.0 and v1.1: configuration and tensors as Hugging Face writes them.

use super::tensors::{Planned, filled, random};

/// As the originals', padded.
pub(super) const VOCABULARY: usize = 32_128;

/// Width of a head in every original up to t5-large.
const HEAD: usize = 64;

/// Deviation of embeddings where they are the output layer as well. Hugging Face initialises them with 1, which makes a
/// random model say its last token again and again; the last norm makes up for the difference.
const TIED_DEVIATION: f64 = 0.1;

/// Shape of a T5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct T5Shape {
    d_model: usize,
    d_ff: usize,
    layers: usize,
    heads: usize,
    /// Width of a head.
    head: usize,
    /// Version 1.1: a gate in the feed-forward layers and a head of its own.
    gated: bool,
}

impl T5Shape {
    /// One with a tied head and plain feed-forward layers.
    pub const fn v1_0(d_model: usize, d_ff: usize, layers: usize, heads: usize) -> Self {
        Self { d_model, d_ff, layers, heads, head: HEAD, gated: false }
    }

    /// The same with heads of another width.
    pub const fn with_head(self, head: usize) -> Self {
        Self { head, ..self }
    }

    /// One with a separate head and gated feed-forward layers.
    pub const fn v1_1(d_model: usize, d_ff: usize, layers: usize, heads: usize) -> Self {
        Self { gated: true, ..Self::v1_0(d_model, d_ff, layers, heads) }
    }

    pub(super) fn config(&self) -> String {
        let Self { d_model, d_ff, layers, heads, head, gated } = *self;
        let (wide, tied) = if gated { ("gated-gelu", false) } else { ("relu", true) };
        format!(
            r#"{{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": {VOCABULARY},
"d_model": {d_model}, "d_kv": {head}, "d_ff": {d_ff}, "num_layers": {layers}, "num_decoder_layers": {layers},
"num_heads": {heads}, "feed_forward_proj": "{wide}", "tie_word_embeddings": {tied}, "torch_dtype": "float32",
"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}}"#
        )
    }

    /// Initialised as by Hugging Face but for [`TIED_DEVIATION`].
    pub(super) fn tensors(&self) -> Vec<Planned> {
        let embeddings = if self.gated { 1.0 } else { TIED_DEVIATION };
        let mut tensors = vec![random("shared.weight", embeddings, &[VOCABULARY, self.d_model])];
        for (stack, attentions) in
            [("encoder", &["SelfAttention"][..]), ("decoder", &["SelfAttention", "EncDecAttention"])]
        {
            for layer in 0..self.layers {
                self.add_block(&mut tensors, (&format!("{stack}.block.{layer}.layer"), attentions));
            }
            let bias = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
            tensors.push(random(bias, keep(self.d_model), &[32, self.heads]));
            let norm = if stack == "decoder" { embeddings.recip() } else { 1.0 };
            tensors.push(filled(format!("{stack}.final_layer_norm.weight"), norm, self.d_model));
        }
        if self.gated {
            tensors.push(random("lm_head.weight", keep(self.d_model), &[VOCABULARY, self.d_model]));
        }
        tensors
    }

    fn add_block(&self, tensors: &mut Vec<Planned>, (block, attentions): (&str, &[&str])) {
        let (d_model, d_ff, inner) = (self.d_model, self.d_ff, self.heads * self.head);
        for (index, attention) in attentions.iter().enumerate() {
            let name = format!("{block}.{index}.{attention}");
            tensors.push(filled(format!("{block}.{index}.layer_norm.weight"), 1.0, d_model));
            tensors.push(random(format!("{name}.q.weight"), keep(d_model * HEAD), &[inner, d_model]));
            tensors.push(random(format!("{name}.k.weight"), keep(d_model), &[inner, d_model]));
            tensors.push(random(format!("{name}.v.weight"), keep(d_model), &[inner, d_model]));
            tensors.push(random(format!("{name}.o.weight"), keep(inner), &[d_model, inner]));
        }
        let name = format!("{block}.{}", attentions.len());
        tensors.push(filled(format!("{name}.layer_norm.weight"), 1.0, d_model));
        let inputs = if self.gated { &["wi_0", "wi_1"][..] } else { &["wi"] };
        for input in inputs {
            let input = format!("{name}.DenseReluDense.{input}.weight");
            tensors.push(random(input, keep(d_model), &[d_ff, d_model]));
        }
        tensors.push(random(format!("{name}.DenseReluDense.wo.weight"), keep(d_ff), &[d_model, d_ff]));
    }
}

/// The deviation that keeps the size of a sum of `width` products.
pub(super) fn keep(width: usize) -> f64 {
    (width as f64).powf(-0.5)
}

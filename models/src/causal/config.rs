//! The shape of a decoder-only model, with the differences between families as values.
//!
//! `stored` reads it from `config.json`.

use ntl_core::labels::Labels;
use ntl_text::checkpoint::{
    CheckpointFiles, FieldError, LoadError, check_epsilon, check_sizes, generation_eos_ids,
};

use crate::families::{Family, NormPlaces, QkNorm};
use crate::ops::Activation;
use crate::rope::Rotary;

/// Shape of a decoder-only model. All sizes are at least 1.
#[derive(Debug, Clone, PartialEq)]
pub struct CausalConfig {
    pub(crate) family: Family,
    pub naming: Naming,
    /// Number of rows in the embedding table; may exceed the number of tokenizer ids.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layers.
    pub intermediate_size: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads, a divisor of `heads`.
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub layers: Vec<LayerConfig>,
    pub norm: NormConfig,
    pub(crate) norm_places: NormPlaces,
    /// Whether the scales of normalisations are stored minus 1.
    pub has_reduced_norms: bool,
    pub(crate) qk_norm: Option<QkNorm>,
    /// Activation of the feed-forward layers.
    pub activation: Activation,
    /// Whether the feed-forward layers have a gate.
    pub gated: bool,
    /// Whether queries, keys and values are stored as one layer, and both inputs of the MLP as another.
    pub fused: bool,
    /// Whether queries, keys and values have a bias.
    pub input_bias: bool,
    /// Whether attention's output has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward layers have biases.
    pub mlp_bias: bool,
    pub positions: PositionEncoding,
    /// Maximum number of positions of prompt and answer together.
    pub positions_max: usize,
    /// Whether the output layer is the embedding table.
    pub tied: bool,
    /// The head that predicts labels instead of an output layer.
    pub score: Option<ScoreHead>,
    pub multipliers: Multipliers,
    pub caps: Caps,
    /// The token that replaces an empty prompt.
    pub bos_id: Option<u32>,
    pub eos_ids: Vec<u32>,
}

/// A head that reads the hidden state of the prompt's last token, except padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScoreHead {
    pub labels: Labels,
    pub pad_id: Option<u32>,
}

/// Names and layout of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// `model.layers.0.self_attn.q_proj.weight`, weights `[out, in]`.
    Llama,
    /// `transformer.h.0.attn.c_attn.weight`, weights `[in, out]`; queries, keys and values are one tensor.
    Gpt2,
}

/// Properties that may differ between layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerConfig {
    /// Number of positions that a row sees, including itself; `None` for all.
    pub window: Option<usize>,
    /// Index of the angles in [`PositionEncoding::Rotary`] by which queries and keys are rotated.
    pub rotary: Option<usize>,
    /// Factor of the attention scores.
    pub scale: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormConfig {
    /// Whether to normalise by mean and variance with a bias (GPT-2); otherwise by the root mean square.
    pub centred: bool,
    /// Added to the variance.
    pub eps: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum PositionEncoding {
    /// Rotary embeddings of queries and keys; kinds of layers may have different ones.
    Rotary(Vec<Rotary>),
    /// A learned vector is added to each embedding.
    Learned,
}

/// The limits of Gemma: a number `x` becomes `cap * tanh(x / cap)`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Caps {
    pub scores: Option<f32>,
    pub logits: Option<f32>,
}

/// Factors of Granite and Gemma; 1 in other families.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multipliers {
    /// Factor of embeddings.
    pub embedding: f64,
    /// Factor of the output that a layer adds to the residual stream.
    pub residual: f64,
    /// Divisor of logits.
    pub logits: f64,
}

impl Multipliers {
    pub const ONE: Self = Self { embedding: 1.0, residual: 1.0, logits: 1.0 };
}

impl ScoreHead {
    /// Returns the part of a prompt up to the token whose hidden state is read.
    pub(super) fn read_tokens<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        let last = tokens.iter().rposition(|token| Some(*token) != self.pad_id);
        // transformers reads the first token of a prompt that consists of padding.
        &tokens[..tokens.len().min(last.unwrap_or(0) + 1)]
    }
}

impl CausalConfig {
    /// Returns the total width of all query heads.
    pub fn query_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Returns the total width of all key heads.
    pub fn key_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Returns the distinct windows of the layers.
    pub(super) fn windows(&self) -> Vec<Option<usize>> {
        let mut windows = Vec::new();
        for layer in &self.layers {
            if !windows.contains(&layer.window) {
                windows.push(layer.window);
            }
        }
        windows
    }

    /// Checks the conditions that hold for every family.
    pub(super) fn check(self) -> Result<Self, FieldError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_heads),
            ("num_key_value_heads", self.num_kv_heads),
            ("head_dim", self.head_dim),
            ("num_hidden_layers", self.layers.len()),
            ("max_position_embeddings", self.positions_max),
        ])?;
        let eps = if self.norm.centred { "layer_norm_epsilon" } else { "rms_norm_eps" };
        check_epsilon(eps, self.norm.eps)?;
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let reason = format!("{} does not divide the {} query heads", self.num_kv_heads, self.num_heads);
            return Err(("num_key_value_heads", reason));
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return Err(("sliding_window", "0 positions would leave nothing to attend to".to_owned()));
        }
        if !(self.multipliers.logits.is_finite() && self.multipliers.logits > 0.0) {
            return Err(("logits_scaling", format!("{} is out of range", self.multipliers.logits)));
        }
        if let Some(id) = self.bos_id
            && id as usize >= self.vocab_size
        {
            return Err(("bos_token_id", format!("{id} is outside the vocabulary")));
        }
        Ok(self)
    }

    /// Replaces the end-of-sequence ids by the ids in `generation_config.json`, which Hugging Face's
    /// generation uses.
    pub(super) fn with_generation(mut self, files: &CheckpointFiles) -> Result<Self, LoadError> {
        if let Some(ids) = generation_eos_ids(files)? {
            self.eos_ids = ids;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use ntl_core::labels::LabelActivation;

    use super::*;

    #[test]
    fn a_head_reads_the_last_token_that_is_not_padding() {
        let labels = Labels { names: vec!["LABEL_0".to_owned()], activation: LabelActivation::Identity };
        for (pad_id, tokens, want) in [
            (None, &[5, 6, 0][..], &[5, 6, 0][..]),
            (Some(0), &[5, 6, 0, 0], &[5, 6]),
            (Some(0), &[0, 5, 0, 6, 0], &[0, 5, 0, 6]),
            (Some(0), &[0, 0], &[0]),
            (Some(0), &[], &[]),
        ] {
            let head = ScoreHead { labels: labels.clone(), pad_id };
            assert_eq!(head.read_tokens(tokens), want, "{pad_id:?} {tokens:?}");
        }
    }
}

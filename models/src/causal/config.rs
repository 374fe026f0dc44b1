//! The shape of a decoder-only model: what differs between families, as values.
//!
//! Not here: how each family writes it down (`families`, `rope`).

use ntl_core::engine::ModelKind;
use serde::Deserialize;

use crate::checkpoint::{CheckpointFiles, LoadError};
use crate::ops::Activation;

use super::Rotary;

const GENERATION_FILE: &str = "generation_config.json";

/// Shape of a decoder-only model. All sizes are at least 1.
#[derive(Debug, Clone, PartialEq)]
pub struct CausalConfig {
    /// The family's name, such as `llama`.
    pub kind: ModelKind,
    /// How the file calls and lays out its tensors.
    pub naming: Naming,
    /// Size of the embedding table; may exceed what the tokenizer knows.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layers.
    pub wide: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`.
    pub key_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// What may differ from layer to layer.
    pub layers: Vec<LayerConfig>,
    /// Normalisation layers.
    pub norm: NormConfig,
    /// Whether each head's queries and keys are normalised, too.
    pub head_norms: bool,
    /// Activation of the feed-forward layers.
    pub activation: Activation,
    /// Whether the feed-forward layers have a gate.
    pub gated: bool,
    /// Whether queries, keys and values have a bias.
    pub input_bias: bool,
    /// Whether attention's output has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward layers have biases.
    pub wide_bias: bool,
    /// How positions enter.
    pub positions: Positions,
    /// Most positions of prompt and answer together.
    pub positions_max: usize,
    /// Whether the output layer is the embedding table.
    pub tied: bool,
    /// Granite's factors; 1 elsewhere.
    pub multipliers: Multipliers,
    /// The token that a text without any begins with.
    pub bos_id: Option<u32>,
    /// Ids that end a sequence.
    pub eos_ids: Vec<u32>,
}

/// How tensors are called and laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// `model.layers.0.self_attn.q_proj.weight`, weights `[out, in]`.
    Llama,
    /// `transformer.h.0.attn.c_attn.weight`, weights `[in, out]`, queries, keys and values in one.
    Gpt2,
}

/// One layer's own values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerConfig {
    /// How many positions a row sees, itself included; all where none is given.
    pub window: Option<usize>,
    /// What attention scores are multiplied with.
    pub scale: f64,
}

/// Normalisation layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormConfig {
    /// Whether the mean is taken off and a bias added (GPT-2), or only the root mean square divided out.
    pub centred: bool,
    /// What is added to the variance.
    pub eps: f64,
}

/// How positions enter.
#[derive(Debug, Clone, PartialEq)]
pub enum Positions {
    /// Queries and keys are turned.
    Rotary(Rotary),
    /// A learned vector is added to each embedding.
    Learned,
}

/// Factors of Granite, as `config.json` calls them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multipliers {
    /// Embeddings are multiplied with it.
    pub embedding: f64,
    /// What a layer adds to the residual stream is multiplied with it.
    pub residual: f64,
    /// Logits are divided by it.
    pub logits: f64,
}

impl Multipliers {
    /// Those of every other family.
    pub const ONE: Self = Self { embedding: 1.0, residual: 1.0, logits: 1.0 };
}

/// A field of `config.json` and what is wrong with it.
pub(super) type FieldError = (&'static str, String);

/// One id or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    pub(super) fn into_ids(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

impl CausalConfig {
    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.head_dim
    }

    /// Checks what every family must keep to.
    pub(super) fn check(self) -> Result<Self, FieldError> {
        /// No model comes near; beyond it sizes multiply past what memory and integers hold.
        const SIZE_MAX: usize = 1 << 24;
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.wide),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.key_heads),
            ("head_dim", self.head_dim),
            ("num_hidden_layers", self.layers.len()),
            ("max_position_embeddings", self.positions_max),
        ];
        if let Some(&(field, size)) = sizes.iter().find(|&&(_, size)| size == 0 || size > SIZE_MAX) {
            return Err((field, format!("{size} is out of range")));
        }
        if !self.heads.is_multiple_of(self.key_heads) {
            let reason = format!("{} does not divide the {} query heads", self.key_heads, self.heads);
            return Err(("num_key_value_heads", reason));
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return Err(("sliding_window", "0 positions are none to see".to_owned()));
        }
        if !(self.multipliers.logits.is_finite() && self.multipliers.logits > 0.0) {
            return Err(("logits_scaling", format!("{} is out of range", self.multipliers.logits)));
        }
        let outside = |id: &&u32| **id as usize >= self.vocab_size;
        if let Some(id) = self.bos_id.iter().find(outside) {
            return Err(("bos_token_id", format!("{id} is outside the vocabulary")));
        }
        Ok(self)
    }

    /// Puts the ids that end a sequence as `generation_config.json` has them, which generation goes by, in the
    /// place of those of `config.json`.
    pub(super) fn with_generation(mut self, files: &CheckpointFiles) -> Result<Self, LoadError> {
        #[derive(Deserialize)]
        struct Stored {
            eos_token_id: Option<OneOrMany>,
        }
        let Some(bytes) = files.read(GENERATION_FILE)? else { return Ok(self) };
        let stored: Stored = serde_json::from_slice(&bytes)
            .map_err(|error| LoadError::malformed(files.name_of(GENERATION_FILE), error))?;
        if let Some(ids) = stored.eos_token_id {
            self.eos_ids = ids.into_ids();
        }
        Ok(self)
    }
}

//! The shape of a T5Gemma, which `stored` reads from `config.json`.

use crate::families::Family;
use crate::ops::{Activation, Heads};
use crate::t5::attention::AttentionKind;

/// Shape of a T5Gemma. All sizes are at least 1.
pub(crate) struct GemmaConfig {
    pub(crate) family: Family,
    pub(crate) encoder: StackConfig,
    pub(crate) decoder: StackConfig,
    /// Whether the decoder's self-attention also attends to the prompt, with the same projections. Otherwise
    /// its layers have a separate cross-attention.
    pub(crate) has_merged_attention: bool,
    pub(crate) tables: Tables,
    /// Logits `x` become `cap * tanh(x / cap)`.
    pub(crate) logits_cap: Option<f32>,
    /// The end of an image, whose embedding is a separate vector.
    pub(crate) image_end_id: Option<u32>,
    /// First token of every decoder sequence.
    pub(crate) start_id: u32,
    pub(crate) eos_ids: Vec<u32>,
}

/// Which of the two token tables and the output layer are one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tables {
    /// All three.
    One,
    /// The decoder's table and the output layer, unless an output layer is stored.
    TiedHead,
    /// None.
    Separate,
}

/// Shape of a stack.
pub(crate) struct StackConfig {
    pub(crate) vocab_size: usize,
    /// Width of the residual stream.
    pub(crate) hidden_size: usize,
    /// Width of the feed-forward layers.
    pub(crate) intermediate_size: usize,
    pub(crate) heads: Heads,
    pub(crate) head_dim: usize,
    /// Whether the queries and keys of each head are normalised.
    pub(crate) has_head_norms: bool,
    pub(crate) kinds: Vec<AttentionKind>,
    /// The index of each layer's kind.
    pub(crate) layers: Vec<usize>,
    /// Added to the mean square by normalisations.
    pub(crate) eps: f64,
    /// Activation of the feed-forward layers.
    pub(crate) activation: Activation,
    /// Number of positions for which the stack was trained.
    pub(crate) positions_max: usize,
}

impl StackConfig {
    /// Returns the width of all query heads.
    pub(super) fn query_width(&self) -> usize {
        self.heads.queries * self.head_dim
    }

    /// Returns the width of all key heads.
    pub(super) fn key_width(&self) -> usize {
        self.heads.keys * self.head_dim
    }
}

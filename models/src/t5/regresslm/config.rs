//! The shape of RegressLM's PyTorch model, which `stored` reads from `ntl.json`.

use ntl_core::numbers::TokenNotation;
use ntl_text::tokenizer::VocabularySource;

use crate::families::GemmaVersion;
use crate::ops::Heads;
use crate::rope::Rotary;
use crate::t5::gemma::StackConfig;

/// All facts about a checkpoint. All sizes are at least 1.
pub(crate) struct TorchConfig {
    /// The file with the weights.
    pub(crate) weights: WeightsFile,
    pub(crate) encoder: EncoderShape,
    pub(crate) decoder: LayersShape,
    /// Number of positions of the decoder.
    pub(crate) positions: usize,
    /// First token of every decoder sequence.
    pub(crate) start_id: u32,
    /// The tokens of prompts.
    pub(crate) vocabulary: VocabularySource,
    /// Training cut prompts after this many tokens.
    pub(crate) prompt_tokens_max: usize,
    /// The tokens of answers.
    pub(crate) notation: TokenNotation,
}

/// Where the weights are.
pub(crate) struct WeightsFile {
    pub(crate) name: String,
    /// The dictionary of tensors among those that training saved.
    pub(crate) key: String,
    /// How the names of all tensors begin.
    pub(crate) prefix: String,
}

pub(crate) enum EncoderShape {
    Vanilla {
        layers: LayersShape,
        rotary: Rotary,
    },
    Gemma {
        version: GemmaVersion,
        stack: StackConfig,
        /// The end of an image, whose embedding is a separate vector.
        image_end_id: Option<u32>,
    },
}

/// Shape of a stack of PyTorch's layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayersShape {
    pub(crate) vocab_size: usize,
    /// Width of the residual stream.
    pub(crate) d_model: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// Width of the feed-forward layers.
    pub(crate) d_ff: usize,
    /// Added to the variance by normalisations.
    pub(crate) eps: f64,
}

impl LayersShape {
    /// Returns the width of a head.
    pub(super) fn head_dim(&self) -> usize {
        self.d_model / self.heads
    }

    pub(super) fn attention_heads(&self) -> Heads {
        let scale = (self.head_dim() as f64).powf(-0.5) as f32;
        Heads { queries: self.heads, keys: self.heads, scale, cap: None }
    }
}

impl EncoderShape {
    pub(super) fn d_model(&self) -> usize {
        match self {
            Self::Vanilla { layers, .. } => layers.d_model,
            Self::Gemma { stack, .. } => stack.hidden_size,
        }
    }

    /// Number of tokens that have embeddings.
    pub(super) fn vocab_size(&self) -> usize {
        match self {
            Self::Vanilla { layers, .. } => layers.vocab_size,
            Self::Gemma { stack, .. } => stack.vocab_size,
        }
    }
}

//! The common result of preparing either file format: a model that mistral.rs can load, and its tokenizer.

use std::path::PathBuf;

use ntl_text::tokenizer::Tokenizer;

use crate::stand_in::StandIn;

/// A checkpoint, ready for mistral.rs to load.
pub(crate) struct Prepared {
    /// The file or directory, for error messages.
    pub(crate) place: String,
    /// Model type, such as `gemma2`.
    pub(crate) kind: String,
    /// Element type of the weights, such as `f32` or `q4k`.
    pub(crate) dtype: String,
    /// Number of weights, or 0 if they could not be counted.
    pub(crate) parameters: u64,
    pub(crate) eos_ids: Vec<u32>,
    /// The token that replaces an empty prompt.
    pub(crate) begin: u32,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) stand_in: StandIn,
    pub(crate) weights: Weights,
}

/// The location of the weights.
pub(crate) enum Weights {
    /// In the directory that mistral.rs reads.
    StandIn,
    Gguf(PathBuf),
}

//! What both file formats are brought into: a model that mistral.rs can load, and its tokenizer.

use std::path::PathBuf;

use ntl_models::tokenizer::Tokenizer;

use crate::stand_in::StandIn;

/// A checkpoint, ready for mistral.rs to load.
pub(crate) struct Prepared {
    /// The file or folder, as errors name it.
    pub(crate) place: String,
    /// Such as `gemma2`.
    pub(crate) kind: String,
    /// Element type of the weights, such as `f32` or `q4k`.
    pub(crate) dtype: String,
    /// 0 where they could not be counted.
    pub(crate) parameters: u64,
    pub(crate) eos_ids: Vec<u32>,
    /// The token that replaces an empty prompt.
    pub(crate) begin: u32,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) stand_in: StandIn,
    pub(crate) weights: Weights,
}

/// Where the weights are.
pub(crate) enum Weights {
    /// In the folder that mistral.rs reads.
    StandIn,
    Gguf(PathBuf),
}

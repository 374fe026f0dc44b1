//! Encoder-decoders over contexts and paths: T5 (v1.0, v1.1, flan, mT5), the variants of the Number Token
//! Loss paper, T5Gemma, and RegressLM.
//!
//! [`T5`] and [`RegressionHead`] are [`BatchModel`](ntl_core::contract::BatchModel)s. The encoder runs on
//! concatenated prompts, and each step runs the decoder on the rows of all requests. Reference: "Exploring
//! the Limits of Transfer Learning with a Unified Text-to-Text Transformer", arXiv 1910.10683, and its
//! Hugging Face checkpoints.

mod attention;
mod bias;
mod config;
mod decoder;
mod embeddings;
mod encoder;
mod gemma;
mod head;
mod layers;
mod model;
mod pooled;
mod pools;
mod prefill;
mod prompts;
mod regression;
mod regresslm;
mod stacks;
mod stored;
mod xval;

pub(crate) use attention::AttentionKind;
pub use config::T5Config;
pub(crate) use embeddings::Embeddings;
pub(crate) use encoder::{Encoder, EncoderLayer, NormsAfter};
pub(crate) use gemma::{encoding, load_regresslm_head, read_notation};
pub(crate) use layers::{FeedForward, Loader, SelfAttention};
pub use model::{T5, T5Kind, TokenizerFacts};
pub(crate) use pooled::{
    HeadActivation, HiddenLayer, InputLayer, LearnedPositions, PooledEncoder, PooledHead, PooledParts,
};
pub(crate) use pools::Pooling;
pub(crate) use prefill::StackSizes;
pub use regression::RegressionHead;
pub(crate) use regresslm::TorchConfig;
pub use xval::NumberScaling;

//! T5 (v1.0, v1.1, flan, mT5) and the variants of the Number Token Loss paper, over contexts and paths.
//!
//! [`T5`] and [`RegressionHead`] are [`BatchModel`](ntl_core::engine::BatchModel)s: prompts go through the encoder
//! packed one behind the other, decoder rows of all requests through one step. Reference: "Exploring the Limits of
//! Transfer Learning with a Unified Text-to-Text Transformer", arXiv 1910.10683, and its Hugging Face checkpoints.

mod bias;
mod config;
mod decoder;
mod encoder;
mod head;
mod layers;
mod model;
mod regression;
mod stacks;
mod xval;

pub use config::T5Config;
pub use model::{T5, T5Kind, TokenizerFacts};
pub use regression::RegressionHead;
pub use xval::NumberScaling;

//! T5Gemma 1 and 2: encoder-decoders with the layers of Gemma 2 and 3.
//!
//! They differ from T5 only in the values with which its stacks are built: rotary positions, windows, shared
//! key heads, caps, and a normalisation after each part of a layer. T5Gemma 2 is read without its vision
//! tower. Computes the same as transformers 5.23. An exported RegressLM is a T5Gemma 1 that writes numbers in
//! dedicated tokens, or its encoder with a regression head (`load_regresslm_head`).

mod config;
mod load;
mod mean_head;
mod number_tokens;
mod stored;

pub(super) use config::StackConfig;
pub(crate) use mean_head::load_regresslm_head;
pub(crate) use number_tokens::{encoding, read_notation};
pub(super) use stored::{StoredSecondEncoder, StoredStack};

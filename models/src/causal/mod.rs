//! Decoder-only models over contexts and paths: Llama, Mistral, Qwen2, Qwen3, dense Granite, SmolLM3,
//! OLMo 2 and 3, Gemma 2 and 3, Phi-3, and GPT-2.
//!
//! [`Causal`] is one [`BatchModel`](ntl_core::contract::BatchModel); the families differ only in the values
//! of [`CausalConfig`]. A context contains the keys and values of all prompt tokens except the last, which is
//! the first row. Prompts that share a prefix share its blocks.

mod block;
mod config;
mod first_rows;
mod layers;
mod model;
mod prefill;
mod prefix;
mod stored;

pub use crate::rope::Rotary;
pub use config::{Caps, CausalConfig, LayerConfig, Multipliers, Naming, NormConfig, PositionEncoding};
pub use model::{Causal, CausalOptions};

#[cfg(test)]
mod tests;

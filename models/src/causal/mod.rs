//! Decoder-only models over contexts and paths: Llama, Mistral, Qwen2, Qwen3, dense Granite and GPT-2.
//!
//! [`Causal`] is one [`BatchModel`](ntl_core::engine::BatchModel); the families differ in values of [`CausalConfig`]. A
//! context holds the keys and values of all prompt tokens but the last, which is the first row. Prompts that begin with the
//! same tokens share the blocks of that prefix.

mod block;
mod config;
mod families;
mod layers;
mod model;
mod prefix;
mod rope;

pub use config::{CausalConfig, Family, LayerConfig, Multipliers, Naming, NormConfig, Positions, Rotary};
pub use model::{Causal, CausalOptions};

#[cfg(test)]
mod tests;

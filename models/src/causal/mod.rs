//! Decoder-only models over contexts and paths: Llama, Mistral, Qwen2, Qwen3, dense Granite and GPT-2.
//!
//! [`Causal`] is one [`BatchModel`](ntl_core::engine::BatchModel); what tells the families apart are values of
//! [`CausalConfig`]. A prompt's keys and values, all but the last token's, are its context; that token is the first
//! row. Prompts that begin alike share what was computed for their beginnings.

mod config;
mod context;
mod families;
mod layers;
mod model;
mod prefix;
mod projection;
mod rope;

pub use config::{CausalConfig, Family, LayerConfig, Multipliers, Naming, NormConfig, Positions};
pub use model::{Causal, CausalOptions};
pub use rope::Rotary;

#[cfg(test)]
mod tests;

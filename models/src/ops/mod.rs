//! The few tensor operations that decide speed, and that every row must get the same result from whatever else
//! is in the batch.
//!
//! On the CPU they are written out here: each output element is reduced in one fixed order, so the number of rows
//! changes nothing. Elsewhere (and as the reference in tests) they are composed of candle's operations.

mod activation;
mod attention;
mod attention_loops;
mod batched;
mod cpu;
mod matmul;
mod norm;
mod rotary;
mod weight;

pub use activation::Activation;
pub(crate) use attention::{AttentionRow, Heads, KeyValues, RelativeBias, Visible, attend};
pub(crate) use batched::Plans;
#[cfg(test)]
pub(crate) use cpu::composed;
pub(crate) use cpu::is_plain;
pub(crate) use matmul::Format;
pub(crate) use norm::{layer_norm, rms_norm};
pub(crate) use rotary::{Turns, rotate};
pub use weight::Placement;
pub(crate) use weight::{Product, Weight};

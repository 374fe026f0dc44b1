//! The few tensor operations that decide speed, and that every row must get the same result from whatever else
//! is in the batch.
//!
//! On the CPU they are written out here: each output element is reduced in one fixed order, so the number of rows
//! changes nothing. Elsewhere (and as the reference in tests) they are composed of candle's operations.

mod activation;
mod attention;
mod cpu;
mod linear;
mod norm;
mod rotary;

pub use activation::Activation;
pub(crate) use attention::{AttentionRow, Heads, KeyValues, RelativeBias, Visible, attend};
pub(crate) use linear::linear;
pub(crate) use norm::{layer_norm, rms_norm};
pub(crate) use rotary::{Turns, rotate};

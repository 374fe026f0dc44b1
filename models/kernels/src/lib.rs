//! Matrix products, attention and the loops between them, on the CPU, over plain `f32` slices.
//!
//! Invariant: each output element is reduced in an order that depends on its own length only. A row's result is
//! therefore the same to the bit alone and in any batch.
//!
//! Vector width is chosen at run time (`pulp`); large inputs are spread over the threads of the current rayon pool.
//! Not here: tensors and devices (`ntl-models`).

mod activation;
mod attention;
mod matmul;
mod norm;
mod rope;
mod vector;

pub use activation::Activation;
pub use attention::{AttentionGroup, AttentionQuery, Heads, KvSlices, RelativeBias, Visible, attend};
pub use matmul::{Float, Format, Matrix};
pub use norm::{layer_norm, rms_norm};
pub use rope::{RopeTables, apply_rope};
pub use vector::add;

//! Matrix multiplication, attention and vector kernels on the CPU, over plain `f32` slices.
//!
//! Invariant: each output element is reduced in an order that depends only on its own length. The result of a
//! row is therefore bit-identical alone and in any batch.
//!
//! The vector width is chosen at run time (`pulp`). Large inputs are divided among the threads of the current
//! rayon pool. Tensors and devices are in `ntl-models`.

mod activation;
mod ahead;
mod attention;
mod matmul;
mod norm;
mod rope;
mod vector;

pub use activation::{Activation, soft_cap};
pub use attention::{AttentionGroup, AttentionQuery, DistanceBias, Heads, KvSlices, Phase, Visible, attend};
pub use matmul::{CodeBits, Codes, Float, Format, Matrix};
pub use norm::{layer_norm, rms_norm};
pub use rope::{RopeTables, apply_rope};
pub use vector::add;

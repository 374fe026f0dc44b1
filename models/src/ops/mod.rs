//! The tensor operations that models are made of. Each has two implementations: the kernels of `ntl-kernels` on the CPU,
//! where a row's result is the same to the bit in any batch, and a composition of candle's operations on devices, which
//! tests compare with the kernels.

mod activation;
mod attention;
mod linear;
mod norm;
mod projections;
mod rope;
mod tensors;
mod weight;

pub use activation::Activation;
pub(crate) use attention::{
    AttentionRow, HeadSource, KeyGroup, KeyValues, KeyView, PassKeys, Plan, RelativeBias, attend,
};
pub(crate) use linear::{Linear, Mlp, MlpInput, StoredLinear};
pub(crate) use norm::Norm;
pub(crate) use ntl_kernels::{AttentionQuery, Format, Heads, Visible};
pub(crate) use projections::{HeadNorms, Projections};
pub(crate) use rope::{RopeTables, apply_rope};
#[cfg(test)]
pub(crate) use tensors::composed;
pub(crate) use tensors::{ModelResult, compute_error, is_placeholder, uses_kernels};
pub use weight::Placement;
pub(crate) use weight::{Product, Weight};

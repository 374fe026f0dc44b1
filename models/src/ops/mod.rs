//! The tensor operations of models. Each has two implementations: the kernels of `ntl-kernels` on the CPU,
//! with which the result of a row is bit-identical in any batch, and a composition of candle's operations on
//! devices, which tests compare with the kernels.

mod activation;
mod attention;
mod linear;
mod low_rank;
mod norm;
#[cfg(feature = "cuda")]
pub(crate) mod own_kernels;
mod projected_rows;
mod replacement;
mod rope;
mod scratch;
mod step_inputs;
mod tensors;
mod weight;

pub use activation::Activation;
pub(crate) use attention::{
    KeyValues, PassKeys, PromptAttention, RelativeBias, SlotGroup, SlotView, TensorGroup, Window, attend,
    prompt_query,
};
#[cfg(feature = "cuda")]
pub(crate) use attention::{Plan, QkvSource};
pub(crate) use linear::{Linear, Mlp, MlpInput, StoredLinear};
pub(crate) use low_rank::{AdaptedRows, AdapterWeights, Change, Site, SiteChange};
pub(crate) use norm::Norm;
pub(crate) use ntl_kernels::{AttentionQuery, Format, Heads, Phase, Visible};
#[cfg(feature = "cuda")]
pub(crate) use projected_rows::ProjectedRows;
pub(crate) use projected_rows::{KvInput, QkNorms, QkvInput};
pub(crate) use replacement::Replacement;
pub(crate) use rope::{PassRope, apply_rope};
pub(crate) use scratch::Scratch;
pub(crate) use step_inputs::StepInputs;
#[cfg(feature = "cuda")]
pub(crate) use tensors::add;
#[cfg(test)]
pub(crate) use tensors::composed;
#[cfg(feature = "cuda")]
pub(crate) use tensors::without_backtrace;
pub(crate) use tensors::{ModelResult, compute_error, device_error, is_placeholder, uses_kernels};
pub(crate) use weight::CodedWeights;
pub use weight::Placement;
pub(crate) use weight::{Product, Weight};

//! Layers of heads that adapters replace (`modules_to_save` in PEFT): the rows of such an adapter have the
//! outputs of the adapter's layer, and the other rows of the pass keep theirs.

use candle_core::{DType, Result, Tensor};
use ntl_kernels::Format;

use super::{Placement, Weight};

/// A layer of an adapter.
pub(crate) struct Replacement {
    /// f32 `[outputs, inputs]`.
    weight: Weight,
    /// f32 `[outputs]`.
    bias: Option<Tensor>,
}

impl Replacement {
    /// Creates the layer from tensors on the CPU, f32 `[outputs, inputs]` and `[outputs]`.
    pub(crate) fn new(weight: &Tensor, bias: Option<&Tensor>, place: &Placement) -> Result<Self> {
        let place = Placement { format: Format::F32, ..place.exact() };
        let weight = Weight::new(weight.to_device(&place.device)?, &place)?;
        let bias = bias.map(|bias| bias.to_device(&place.device)).transpose()?;
        Ok(Self { weight, bias })
    }

    /// Maps `[M, inputs]` to f32 `[M, outputs]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let product = self.weight.forward(&x.to_dtype(DType::F32)?)?;
        self.bias.as_ref().map_or(Ok(product.clone()), |bias| product.broadcast_add(bias))
    }
}

//! Layers of heads that adapters replace (`modules_to_save` in PEFT): the rows of such an adapter have the outputs of
//! the adapter's layer, and the other rows of the pass keep theirs.

use candle_core::{DType, Result, Tensor};
use ntl_kernels::Format;

use super::{AdaptedRows, Placement, Site, Weight};

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
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let product = self.weight.forward(&x.to_dtype(DType::F32)?)?;
        self.bias.as_ref().map_or(Ok(product.clone()), |bias| product.broadcast_add(bias))
    }
}

impl AdaptedRows {
    /// Returns the output `y` `[R, outputs]` of a layer with the input `x` `[R, inputs]`, with the rows of the adapters
    /// that replace the layer.
    pub(super) fn replaced(&self, site: Option<Site>, x: &Tensor, y: Tensor) -> Result<Tensor> {
        let groups = self.replacing(site);
        if groups.is_empty() {
            return Ok(y);
        }
        let count = y.dim(0)?;
        let (dtype, device) = (y.dtype(), y.device().clone());
        let mut sources: Vec<u32> = (0..count as u32).collect();
        let mut outputs = vec![y];
        let mut end = count as u32;
        for (rows, replacement) in groups {
            for &row in rows {
                sources[row as usize] = end;
                end += 1;
            }
            let rows = Tensor::from_slice(rows, rows.len(), &device)?;
            outputs.push(replacement.forward(&x.index_select(&rows, 0)?)?.to_dtype(dtype)?);
        }
        Tensor::cat(&outputs, 0)?.index_select(&Tensor::from_vec(sources, count, &device)?, 0)
    }
}

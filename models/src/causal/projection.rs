//! Projections with their biases: several of the same numbers are one product.

use candle_core::{Result, Tensor};

use crate::ops::{Activation, Weight};

/// A weight `[out, in]` with a bias `[out]`, as they are read.
pub(super) struct Stored {
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
}

/// `P` projections of the same numbers, side by side.
pub(super) struct Projection<const P: usize> {
    pub(super) weight: Weight,
    pub(super) bias: Option<Tensor>,
    pub(super) widths: [usize; P],
}

impl<const P: usize> Projection<P> {
    /// `[M, in]` to `[M, width]` for each of the projections.
    pub(super) fn parts(&self, x: &Tensor) -> Result<[Tensor; P]> {
        let mut parts = self.weight.parts(x, self.widths)?;
        if let Some(bias) = &self.bias {
            let mut from = 0;
            for (part, width) in parts.iter_mut().zip(self.widths) {
                *part = part.broadcast_add(&bias.narrow(0, from, width)?)?;
                from += width;
            }
        }
        Ok(parts)
    }
}

impl Projection<1> {
    /// The same, then an activation.
    pub(super) fn activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        match &self.bias {
            None => self.weight.activated(x, activation),
            Some(_) => activation.apply(&self.forward(x)?),
        }
    }

    /// The same, then what is added to it: `residual` `[M, out]`, whose element type the sum has.
    pub(super) fn added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match &self.bias {
            None => self.weight.added(x, residual),
            Some(_) => residual + self.forward(x)?.to_dtype(residual.dtype())?,
        }
    }

    /// `[M, in]` to `[M, out]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.parts(x).map(|[all]| all)
    }
}

impl Projection<2> {
    /// The activation of the first, times the second; both as wide.
    pub(super) fn gated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        if self.bias.is_none() {
            return self.weight.gated(x, activation);
        }
        let [gate, wide] = self.parts(x)?;
        activation.apply(&gate)? * wide
    }
}

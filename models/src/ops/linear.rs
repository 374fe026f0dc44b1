//! Linear layers with optional biases. Several layers over the same input are one product.

use candle_core::{Result, Tensor};

use super::tensors::{is_placeholder, slice, uses_kernels};
use super::weight::{product, product_parts, tensor};
use super::{Activation, Placement, Weight};

/// A layer as a checkpoint stores it: weight `[out, in]`, bias `[out]`.
pub(crate) struct StoredLinear {
    pub(crate) weight: Tensor,
    pub(crate) bias: Option<Tensor>,
}

/// Linear layers over the same input, whose outputs are read in `P` parts.
pub(crate) struct Linear<const P: usize = 1> {
    weight: Weight,
    bias: Option<Tensor>,
    widths: [usize; P],
}

impl<const P: usize> Linear<P> {
    /// `widths` are those of the parts. Either all layers have a bias or none has.
    pub(crate) fn new(layers: &[StoredLinear], widths: [usize; P], place: &Placement) -> Result<Self> {
        let weights: Vec<&Tensor> = layers.iter().map(|layer| &layer.weight).collect();
        let weight = if is_placeholder(weights[0]) {
            let shape = (widths.iter().sum::<usize>(), weights[0].dims()[1]);
            weights[0].narrow(0, 0, 1)?.broadcast_as(shape)?
        } else {
            Tensor::cat(&weights, 0)?
        };
        let with_bias = layers.iter().filter(|layer| layer.bias.is_some()).count();
        assert!(
            with_bias == 0 || with_bias == layers.len(),
            "{with_bias} of {} layers have a bias",
            layers.len()
        );
        let biases: Option<Vec<&Tensor>> = layers.iter().map(|layer| layer.bias.as_ref()).collect();
        let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose()?;
        Ok(Self { weight: Weight::new(weight, place)?, bias, widths })
    }

    /// `[M, in]` to `[M, width]` for each part.
    pub(crate) fn parts(&self, x: &Tensor) -> Result<[Tensor; P]> {
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

impl Linear {
    /// `[M, in]` to `[M, out]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.parts(x).map(|[all]| all)
    }

    /// `activation(forward(x))`.
    pub(crate) fn activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        match (&self.weight, &self.bias, activation.kernel()) {
            (Weight::Packed(matrix), None, Some(activation)) => {
                let mut values = product(matrix, x)?;
                activation.apply(&mut values);
                tensor(x, values, matrix.outputs())
            }
            _ => activation.apply(&self.forward(x)?),
        }
    }

    /// `forward(x) + residual`, with `residual` `[M, out]`, whose element type the sum has.
    pub(crate) fn added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match (&self.weight, &self.bias) {
            (Weight::Packed(matrix), None) if uses_kernels(residual) => {
                let mut values = product(matrix, x)?;
                let (storage, layout) = residual.storage_and_layout();
                ntl_kernels::add(&mut values, slice(&storage, layout)?);
                tensor(x, values, matrix.outputs())
            }
            _ => residual + self.forward(x)?.to_dtype(residual.dtype())?,
        }
    }
}

impl Linear<2> {
    /// The activation of the first part, times the second; both are equally wide.
    pub(crate) fn gated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        match (&self.weight, &self.bias, activation.kernel()) {
            (Weight::Packed(matrix), None, Some(activation)) => {
                let [mut gate, up] = product_parts(matrix, x, self.widths)?;
                activation.apply_gated(&mut gate, &up);
                tensor(x, gate, self.widths[0])
            }
            _ => {
                let [gate, up] = self.parts(x)?;
                activation.apply(&gate)? * up
            }
        }
    }
}

/// The feed-forward part of a layer.
pub(crate) struct Mlp {
    pub(crate) up: MlpInput,
    pub(crate) down: Linear,
    pub(crate) activation: Activation,
}

pub(crate) enum MlpInput {
    /// The gate, then what it is multiplied with.
    Gated(Linear<2>),
    Plain(Linear),
}

impl Mlp {
    /// `[M, hidden]` to the same, with `residual` added.
    pub(crate) fn added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let wide = match &self.up {
            MlpInput::Gated(both) => both.gated(x, self.activation)?,
            MlpInput::Plain(up) => up.activated(x, self.activation)?,
        };
        self.down.added(&wide, residual)
    }
}

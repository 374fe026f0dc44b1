//! Linear layers with optional biases. Several layers over the same input are computed as one matmul.

use candle_core::{DType, Result, Tensor};

use super::tensors::{add_product, is_placeholder, slice, uses_kernels};
use super::weight::{product, product_parts, tensor};
use super::{Activation, Norm, Placement, Weight};

/// A layer as stored in a checkpoint: weight `[out, in]`, bias `[out]`.
pub(crate) struct StoredLinear {
    pub(crate) weight: Tensor,
    pub(crate) bias: Option<Tensor>,
}

/// Linear layers over the same input, whose outputs are read in `P` parts.
pub(crate) struct Linear<const P: usize = 1> {
    weight: Weight,
    /// Biases, in f32.
    bias: Option<Tensor>,
    widths: [usize; P],
    /// Factor of the outputs before they are added to a residual; `None` for 1.
    factor: Option<f64>,
    /// Normalises the outputs before they are added to a residual.
    norm: Option<Norm>,
}

impl<const P: usize> Linear<P> {
    /// Combines layers. `widths` are the widths of the parts. Either all layers have a bias or none has.
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
        let bias = biases.map(|biases| Tensor::cat(&biases, 0)?.to_dtype(DType::F32)).transpose()?;
        Ok(Self { weight: Weight::new(weight, place)?, bias, widths, factor: None, norm: None })
    }

    /// Maps `[M, in]` to `[M, width]` for each part, in the type of the weight; in f32 if there is a bias.
    pub(crate) fn parts(&self, x: &Tensor) -> Result<[Tensor; P]> {
        let mut parts = self.weight.parts(x, self.widths, self.bias.is_some())?;
        if let Some(bias) = &self.bias {
            let mut from = 0;
            for (part, width) in parts.iter_mut().zip(self.widths) {
                *part = part.broadcast_add(&bias.narrow(0, from, width)?)?;
                from += width;
            }
        }
        Ok(parts)
    }

    pub(crate) fn widths(&self) -> [usize; P] {
        self.widths
    }

    /// Returns the element type of the weight, in which the matmul is computed.
    pub(crate) fn dtype(&self) -> DType {
        self.weight.dtype()
    }

    /// Maps `[M, in]` to `[M, sum of widths]`, with all parts side by side, as one matmul in f32.
    pub(crate) fn together(&self, x: &Tensor) -> Result<Tensor> {
        let product = self.weight.wide(x)?;
        match &self.bias {
            Some(bias) => product.broadcast_add(bias),
            None => Ok(product),
        }
    }
}

impl Linear {
    /// Returns the same layer, but `added` multiplies its outputs by `factor`. The weights keep the
    /// checkpoint's values; scaling them would round them again.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        let factor = Some(factor).filter(|factor| (factor - 1.0).abs() > f64::EPSILON);
        Self { factor, ..self }
    }

    /// Returns the same layer, but `added` normalises its outputs.
    pub(crate) fn normed(self, norm: Norm) -> Self {
        Self { norm: Some(norm.exact()), ..self }
    }

    /// Maps `[M, in]` to `[M, out]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.parts(x).map(|[all]| all)
    }

    /// Returns `activation(forward(x))`, on devices in `dtype`.
    fn activated(&self, x: &Tensor, activation: Activation, dtype: DType) -> Result<Tensor> {
        match (&self.weight, &self.bias, activation.kernel()) {
            (Weight::Packed(matrix), None, Some(activation)) => {
                let mut values = product(matrix, x)?;
                activation.apply(&mut values);
                tensor(x, values, matrix.outputs())
            }
            // Clipping at 0 is exact in 16 bits.
            _ if activation == Activation::Relu => activation.apply(&self.forward(x)?),
            _ => activation.rounded(&self.together(x)?, dtype),
        }
    }

    /// Returns `norm(factor * forward(x)) + residual`. `residual` is f32 `[M, out]`, and no other tensor may
    /// share its storage: a device adds in place.
    pub(crate) fn added(&self, x: &Tensor, residual: Tensor) -> Result<Tensor> {
        if let Some(norm) = &self.norm {
            return residual + norm.forward(&self.multiplied(x)?)?;
        }
        match (&self.weight, &self.bias) {
            (Weight::Packed(matrix), None) if uses_kernels(&residual) => {
                let mut values = product(matrix, x)?;
                if let Some(factor) = self.factor {
                    values.iter_mut().for_each(|value| *value *= factor as f32);
                }
                let (storage, layout) = residual.storage_and_layout();
                ntl_kernels::add(&mut values, slice(&storage, layout)?);
                tensor(x, values, matrix.outputs())
            }
            (Weight::Whole(weight), None) => {
                add_product(residual, &x.to_dtype(weight.dtype())?, weight, self.factor.unwrap_or(1.0))
            }
            _ => residual + self.multiplied(x)?,
        }
    }

    /// Returns `factor * forward(x)` in f32.
    fn multiplied(&self, x: &Tensor) -> Result<Tensor> {
        let product = self.together(x)?;
        match self.factor {
            Some(factor) => product * factor,
            None => Ok(product),
        }
    }
}

impl Linear<2> {
    /// Returns the activation of the first part times the second. Both have the same width. On devices in
    /// `dtype`.
    fn gated(&self, x: &Tensor, activation: Activation, dtype: DType) -> Result<Tensor> {
        match (&self.weight, &self.bias, activation.kernel()) {
            (Weight::Packed(matrix), None, Some(activation)) => {
                let [mut gate, up] = product_parts(matrix, x, self.widths)?;
                activation.apply_gated(&mut gate, &up);
                tensor(x, gate, self.widths[0])
            }
            _ => activation.gated(&self.together(x)?, dtype),
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
    /// The gate, followed by the layer that it is multiplied by.
    Gated(Linear<2>),
    Plain(Linear),
}

impl Mlp {
    /// Maps `[M, hidden]` to the same shape and adds `residual`, whose storage no other tensor may share.
    pub(crate) fn added(&self, x: &Tensor, residual: Tensor) -> Result<Tensor> {
        let dtype = self.down.weight.dtype();
        let wide = match &self.up {
            MlpInput::Gated(both) => both.gated(x, self.activation, dtype)?,
            MlpInput::Plain(up) => up.activated(x, self.activation, dtype)?,
        };
        self.down.added(&wide, residual)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::ops::composed;

    /// Returns the scaled output of a layer in an element type, and the same matmul in f32.
    fn added(dtype: DType) -> [Vec<f32>; 2] {
        let random = |rows, columns| Tensor::randn(0f32, 1f32, (rows, columns), &Device::Cpu).unwrap();
        let x = random(3, 64);
        let weight = random(5, 64).to_dtype(dtype).unwrap();
        let x = x.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
        let exact = (x.matmul(&weight.to_dtype(DType::F32).unwrap().t().unwrap()).unwrap() * 0.22).unwrap();
        let place = Placement { dtype, ..Placement::default() };
        let layer = Linear::new(&[StoredLinear { weight, bias: None }], [5], &place).unwrap().scaled(0.22);
        let got = layer.added(&x, exact.zeros_like().unwrap()).unwrap();
        [got, exact].map(|tensor| tensor.flatten_all().unwrap().to_vec1().unwrap())
    }

    #[test]
    fn a_factor_is_applied_after_the_matmul_and_does_not_round_weights() {
        let composed = |dtype| composed::during(|| added(dtype));
        for [got, want] in [added(DType::F32), composed(DType::F32), composed(DType::BF16)] {
            for (got, want) in got.iter().zip(&want) {
                // The product is rounded once, by half a unit in the last of its eight bits.
                let off_max = want.abs() / 256.0 + 1e-6;
                assert!((got - want).abs() <= off_max, "got {got}, expected {want}");
            }
        }
    }
}

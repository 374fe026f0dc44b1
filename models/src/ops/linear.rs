//! Linear layers with optional biases, and with the changes of adapters. Several layers over the same input
//! are computed as one matmul.

use candle_core::{DType, Result, Tensor};
use ntl_kernels::{Codes, Matrix};

use super::tensors::{add, add_product, is_placeholder, matmul, slice, uses_kernels, wide_product};
use super::weight::{product_parts, tensor};
use super::{Activation, AdaptedRows, Norm, Placement, Product, Scratch, Site, Weight};

/// A layer as stored in a checkpoint: weight `[out, in]`, bias `[out]`.
pub(crate) struct StoredLinear {
    /// Its name within the complete model, by which adapters refer to it.
    pub(crate) module: String,
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
    /// Where adapters can change the layer.
    site: Option<Site>,
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
        Ok(Self { bias, ..Self::plain(Weight::new(weight, place)?, widths) })
    }

    /// Creates a layer without a bias from a weight that may be shared.
    pub(crate) fn plain(weight: Weight, widths: [usize; P]) -> Self {
        Self { weight, bias: None, widths, factor: None, norm: None, site: None }
    }

    /// Returns the same layer, which adapters can change.
    pub(crate) fn adaptable(self, site: Site) -> Self {
        Self { site: Some(site), ..self }
    }

    /// Returns the same layer with these codes as its weight.
    pub(crate) fn with_codes(self, codes: &Codes) -> Self {
        let outputs = self.outputs();
        let shape = [outputs, codes.codes.len() / outputs.max(1)];
        Self { weight: Weight::of_codes(codes, shape), ..self }
    }

    /// Returns the sum of all widths.
    fn outputs(&self) -> usize {
        self.widths.iter().sum()
    }

    /// Returns the outputs without the bias, in parts of these widths, on the CPU.
    fn values<const Q: usize>(
        &self,
        matrix: &Matrix,
        x: &Tensor,
        widths: [usize; Q],
        rows: &AdaptedRows,
    ) -> Result<[Vec<f32>; Q]> {
        let mut parts = product_parts(matrix, x, widths)?;
        rows.add(self.site, x, &mut parts, widths)?;
        Ok(parts)
    }

    /// Maps `[M, in]` to `[M, width]` for each part, in the type of the weight; in f32 if there is a bias.
    pub(crate) fn parts(&self, x: &Tensor, rows: &AdaptedRows) -> Result<[Tensor; P]> {
        let mut parts = match &self.weight {
            Weight::Packed(matrix) => {
                let values = self.values(matrix, x, self.widths, rows)?;
                let mut parts = Vec::with_capacity(P);
                for (values, width) in values.into_iter().zip(self.widths) {
                    parts.push(tensor(x, values, width)?);
                }
                into_array(parts)?
            }
            Weight::Whole(weight) => match rows.change(self.site, x, self.outputs())? {
                Some(change) => self.changed_parts(weight, x, &change)?,
                None => product_by_part(weight, x, self.widths, self.bias.is_some())?,
            },
        };
        if let Some(bias) = &self.bias {
            let mut from = 0;
            for (part, width) in parts.iter_mut().zip(self.widths) {
                *part = part.broadcast_add(&bias.narrow(0, from, width)?)?;
                from += width;
            }
        }
        Ok(parts)
    }

    /// Like [`Self::parts`], but without the bias and with a change f32 `[M, sum of widths]`.
    fn changed_parts(&self, weight: &Tensor, x: &Tensor, change: &Tensor) -> Result<[Tensor; P]> {
        let dtype = if self.bias.is_some() { DType::F32 } else { weight.dtype() };
        let mut changed = Vec::with_capacity(P);
        let mut from = 0;
        for (part, width) in product_by_part(weight, x, self.widths, true)?.into_iter().zip(self.widths) {
            changed.push((part + change.narrow(1, from, width)?)?.to_dtype(dtype)?);
            from += width;
        }
        into_array(changed)
    }

    pub(crate) fn widths(&self) -> [usize; P] {
        self.widths
    }

    /// Returns the element type of the weight, in which the matmul is computed.
    pub(crate) fn dtype(&self) -> DType {
        self.weight.dtype()
    }

    /// Maps `[M, in]` to `[M, sum of widths]`, with all parts side by side, as one matmul in f32.
    pub(crate) fn together(&self, x: &Tensor, rows: &AdaptedRows) -> Result<Tensor> {
        let product = match &self.weight {
            Weight::Packed(matrix) => {
                let outputs = self.outputs();
                let [all] = self.values(matrix, x, [outputs], rows)?;
                tensor(x, all, outputs)?
            }
            Weight::Whole(weight) => {
                let product = wide_product(&x.to_dtype(weight.dtype())?, weight)?;
                match rows.change(self.site, x, self.outputs())? {
                    Some(change) => (product + change)?,
                    None => product,
                }
            }
        };
        match &self.bias {
            Some(bias) => add(product, bias),
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

    /// Maps `[M, in]` to `[M, out]`, without adapters.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.parts(x, &AdaptedRows::default()).map(|[all]| all)
    }

    /// Maps `[M, in]` to `[M, out]`, with the changes of adapters, and with their layers if they replace this
    /// one.
    pub(crate) fn replaceable(&self, x: &Tensor, rows: &AdaptedRows) -> Result<Tensor> {
        let [all] = self.parts(x, rows)?;
        rows.replaced(self.site, x, all)
    }

    /// Maps `[M, in]` to `[M, out]` without the bias, and without a tensor if none is needed, so that reading
    /// the numbers copies nothing.
    pub(crate) fn product(&self, x: &Tensor, rows: &AdaptedRows) -> Result<Product> {
        match &self.weight {
            Weight::Packed(matrix) => {
                let [values] = self.values(matrix, x, self.widths, rows)?;
                Ok(Product::Values { values, n: matrix.outputs() })
            }
            Weight::Whole(weight) => {
                let change = rows.change(self.site, x, self.outputs())?;
                let x = x.to_dtype(weight.dtype())?;
                let product = match change {
                    Some(change) => wide_product(&x, weight)? + change,
                    None => matmul(&x, &weight.t()?),
                };
                product.map(Product::Tensor)
            }
        }
    }

    /// Returns `activation(forward(x))`, on devices in `dtype`.
    fn activated(
        &self,
        x: &Tensor,
        activation: Activation,
        dtype: DType,
        rows: &AdaptedRows,
    ) -> Result<Tensor> {
        match (&self.weight, &self.bias, activation.kernel()) {
            (Weight::Packed(matrix), None, Some(activation)) => {
                let [mut values] = self.values(matrix, x, self.widths, rows)?;
                activation.apply(&mut values);
                tensor(x, values, matrix.outputs())
            }
            _ => activation.rounded(&Scratch(self.together(x, rows)?), dtype),
        }
    }

    /// Returns `norm(factor * forward(x)) + residual`. `residual` is f32 `[M, out]`, and no other tensor may
    /// share its storage: a device adds in place.
    pub(crate) fn added(&self, x: &Tensor, residual: Tensor, rows: &AdaptedRows) -> Result<Tensor> {
        match (&self.weight, &self.bias, &self.norm) {
            (Weight::Packed(matrix), None, norm) if uses_kernels(&residual) => {
                let [mut values] = self.values(matrix, x, self.widths, rows)?;
                if let Some(factor) = self.factor {
                    values.iter_mut().for_each(|value| *value *= factor as f32);
                }
                if let Some(norm) = norm {
                    norm.apply(&mut values)?;
                }
                let (storage, layout) = residual.storage_and_layout();
                ntl_kernels::add(&mut values, slice(&storage, layout)?);
                tensor(x, values, matrix.outputs())
            }
            (_, _, Some(norm)) => {
                let product = Scratch(self.multiplied(x, rows)?);
                add(residual, &Scratch(norm.forward(&product)?))
            }
            (Weight::Whole(weight), None, None) => {
                let factor = self.factor.unwrap_or(1.0);
                let sum = add_product(residual, &x.to_dtype(weight.dtype())?, weight, factor)?;
                match rows.change(self.site, x, self.outputs())? {
                    Some(change) => sum + (change * factor)?,
                    None => Ok(sum),
                }
            }
            _ => add(residual, &Scratch(self.multiplied(x, rows)?)),
        }
    }

    /// Returns `factor * forward(x)` in f32.
    fn multiplied(&self, x: &Tensor, rows: &AdaptedRows) -> Result<Tensor> {
        let product = self.together(x, rows)?;
        match self.factor {
            Some(factor) => product * factor,
            None => Ok(product),
        }
    }
}

impl Linear<2> {
    /// Returns the activation of the first part times the second. Both have the same width. On devices in
    /// `dtype`.
    fn gated(&self, x: &Tensor, activation: Activation, dtype: DType, rows: &AdaptedRows) -> Result<Tensor> {
        match (&self.weight, &self.bias, activation.kernel()) {
            (Weight::Packed(matrix), None, Some(activation)) => {
                let [mut gate, up] = self.values(matrix, x, self.widths, rows)?;
                activation.apply_gated(&mut gate, &up);
                tensor(x, gate, self.widths[0])
            }
            _ => activation.gated(&Scratch(self.together(x, rows)?), dtype),
        }
    }
}

/// Returns the columns of the product of `x` `[M, K]` and a weight `[N, K]` in parts: `[M, width]` for each
/// of `widths`, which add up to `N`. One matmul per part: splitting a single result would copy every part. If
/// `wide`, the sums stay f32.
fn product_by_part<const P: usize>(
    weight: &Tensor,
    x: &Tensor,
    widths: [usize; P],
    wide: bool,
) -> Result<[Tensor; P]> {
    let x = x.to_dtype(weight.dtype())?;
    let mut parts = Vec::with_capacity(P);
    let mut from = 0;
    for width in widths {
        let weight = weight.narrow(0, from, width)?;
        parts.push(if wide { wide_product(&x, &weight)? } else { matmul(&x, &weight.t()?)? });
        from += width;
    }
    into_array(parts)
}

fn into_array<const P: usize>(parts: Vec<Tensor>) -> Result<[Tensor; P]> {
    parts.try_into().map_err(|_| candle_core::Error::Msg(format!("expected {P} parts")))
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
    pub(crate) fn added(&self, x: &Tensor, residual: Tensor, rows: &AdaptedRows) -> Result<Tensor> {
        let dtype = self.down.weight.dtype();
        let wide = match &self.up {
            MlpInput::Gated(both) => both.gated(x, self.activation, dtype, rows)?,
            MlpInput::Plain(up) => up.activated(x, self.activation, dtype, rows)?,
        };
        self.down.added(&Scratch(wide), residual, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::composed;
    use crate::random::Random;

    /// Returns the scaled output of a layer in an element type, and the same matmul in f32.
    fn added(dtype: DType) -> [Vec<f32>; 2] {
        let random = Random::new(1);
        let x = random.matrix(3, 64, 1.0);
        let weight = random.matrix(5, 64, 1.0).to_dtype(dtype).unwrap();
        let x = x.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
        let exact = (x.matmul(&weight.to_dtype(DType::F32).unwrap().t().unwrap()).unwrap() * 0.22).unwrap();
        let place = Placement { dtype, ..Placement::default() };
        let layer =
            Linear::new(&[StoredLinear { module: "down".to_owned(), weight, bias: None }], [5], &place)
                .unwrap()
                .scaled(0.22);
        let got = layer.added(&x, exact.zeros_like().unwrap(), &AdaptedRows::default()).unwrap();
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

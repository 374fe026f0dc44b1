//! Weights of layers: packed for the loops of the CPU, tensors elsewhere.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use super::matmul::{Format, Matrix};
use super::{Activation, batched, cpu};

/// Where a model computes, with which numbers, and how it keeps its weights.
#[derive(Debug, Clone)]
pub struct Placement {
    pub(crate) device: Device,
    /// Type of weights, of what products give, and of keys and values. What layers add up, normalisation, softmax and
    /// logits are f32 throughout.
    pub(crate) dtype: DType,
    /// How weights are kept on the CPU.
    pub(crate) format: Format,
}

impl Placement {
    /// On the CPU, where everything is computed in f32.
    pub(crate) fn cpu(format: Format) -> Self {
        Self { device: Device::Cpu, dtype: DType::F32, format }
    }

    /// The same place for weights whose products are to be exact: f32, whatever the others are.
    pub(crate) fn exact(&self) -> Self {
        Self { dtype: DType::F32, ..self.clone() }
    }

    /// Memory that so many weights take, were all of them applied by products.
    pub(crate) fn bytes(&self, weights: u64) -> u64 {
        match (&self.device, self.format) {
            (Device::Cpu, Format::Bf16 | Format::F16) => weights * 2,
            // One 16-bit scale for 32 bytes.
            (Device::Cpu, Format::Q8) => weights + weights.div_ceil(16),
            _ => weights * self.dtype.size_in_bytes() as u64,
        }
    }

    /// The element type of weights, as users know it.
    pub(crate) fn name(&self) -> &'static str {
        match (&self.device, self.format) {
            (Device::Cpu, Format::Bf16) => "bf16",
            (Device::Cpu, Format::F16) => "f16",
            (Device::Cpu, Format::Q8) => "q8_0",
            _ => self.dtype.as_str(),
        }
    }
}

impl Default for Placement {
    /// On the CPU, in f32 throughout.
    fn default() -> Self {
        Self::cpu(Format::F32)
    }
}

/// A weight `[N, K]`, as `torch.nn.Linear` stores it. Clones share it.
#[derive(Debug, Clone)]
pub(crate) enum Weight {
    Packed { matrix: Arc<Matrix>, n: usize, k: usize },
    Whole(Tensor),
}

/// What a weight was applied to: numbers `[M, N]` where they were computed by loops, a tensor elsewhere.
pub(crate) enum Product {
    Values { values: Vec<f32>, n: usize },
    Tensor(Tensor),
}

impl Weight {
    /// Packs a tensor `[N, K]`. One that is a single number seen everywhere stays what it is.
    pub(crate) fn new(tensor: Tensor, place: &Placement) -> Result<Self> {
        if !cpu::is_plain(&tensor) || tensor.stride().iter().all(|&stride| stride == 0) {
            return Ok(Self::Whole(tensor));
        }
        let (n, k) = tensor.dims2()?;
        let tensor = tensor.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        let matrix = Matrix::pack(cpu::slice(&storage, layout)?, k, place.format);
        Ok(Self::Packed { matrix: Arc::new(matrix), n, k })
    }

    /// Applies the weight, without bias: `x` `[M, K]` to `[M, N]`, computed in the element type of the weight.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Whole(weight) => batched::product(&x.to_dtype(weight.dtype())?, &weight.t()?),
            Self::Packed { n, .. } => self.parts(x, [*n]).map(|[all]| all),
        }
    }

    /// The same without a tensor around it where none is needed: its numbers are not copied to be read.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Product> {
        match self {
            Self::Whole(_) => self.forward(x).map(Product::Tensor),
            Self::Packed { n, .. } => {
                let values = self.all_products(x, *n)?;
                Ok(Product::Values { values, n: *n })
            }
        }
    }

    /// The weight, then what is added to it: `residual` `[M, N]`, whose element type the sum has.
    pub(crate) fn added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match self {
            Self::Packed { n, .. } if cpu::is_plain(residual) => {
                let mut values = self.all_products(x, *n)?;
                let (storage, layout) = residual.storage_and_layout();
                cpu::add(&mut values, cpu::slice(&storage, layout)?);
                Tensor::from_vec(values, (x.dim(0)?, *n), x.device())
            }
            _ => residual + self.forward(x)?.to_dtype(residual.dtype())?,
        }
    }

    /// The weight, then an activation.
    pub(crate) fn activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        match self {
            Self::Packed { n, .. } if activation.is_in_place() => {
                let mut values = self.all_products(x, *n)?;
                activation.apply_in_place(&mut values, None);
                Tensor::from_vec(values, (x.dim(0)?, *n), x.device())
            }
            _ => activation.apply(&self.forward(x)?),
        }
    }

    /// The activation of the first half of the outputs, times the second half: `[M, N / 2]`.
    pub(crate) fn gated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        match self {
            Self::Packed { n, .. } if activation.is_in_place() => {
                let mut halves = self.products(x, &[n / 2; 2])?;
                let (factors, mut values) =
                    (halves.pop().unwrap_or_default(), halves.pop().unwrap_or_default());
                activation.apply_in_place(&mut values, Some(&factors));
                Tensor::from_vec(values, (x.dim(0)?, n / 2), x.device())
            }
            _ => {
                let [gate, wide] = self.parts(x, [self.outputs()? / 2; 2])?;
                activation.apply(&gate)? * wide
            }
        }
    }

    /// Outputs, `N`.
    fn outputs(&self) -> Result<usize> {
        match self {
            Self::Packed { n, .. } => Ok(*n),
            Self::Whole(weight) => weight.dim(0),
        }
    }

    /// The numbers of [`parts`](Self::parts) of a packed weight; none of one that is not.
    fn products(&self, x: &Tensor, widths: &[usize]) -> Result<Vec<Vec<f32>>> {
        let Self::Packed { matrix, k, .. } = self else { return Ok(Vec::new()) };
        let (m, _) = x.dims2()?;
        debug_assert_eq!(x.dim(1)?, *k, "x {:?}", x.shape());
        if m == 0 || *k == 0 {
            return Ok(widths.iter().map(|width| vec![0.0; m * width]).collect());
        }
        let (storage, layout) = x.storage_and_layout();
        Ok(matrix.product(cpu::slice(&storage, layout)?, widths))
    }

    /// The same as one part, which is all `n` outputs wide.
    fn all_products(&self, x: &Tensor, n: usize) -> Result<Vec<f32>> {
        Ok(self.products(x, &[n])?.pop().unwrap_or_default())
    }

    /// What the weight makes of `x`, in parts: `[M, width]` for each of `widths`, which add up to `N`.
    pub(crate) fn parts<const P: usize>(&self, x: &Tensor, widths: [usize; P]) -> Result<[Tensor; P]> {
        let (m, _) = x.dims2()?;
        let parts = match self {
            Self::Whole(_) => {
                let (all, mut from) = (self.forward(x)?, 0);
                let cut = |width| {
                    from += width;
                    all.narrow(1, from - width, width)?.contiguous()
                };
                widths.into_iter().map(cut).collect::<Result<Vec<_>>>()?
            }
            Self::Packed { .. } => {
                let tensors = self.products(x, &widths)?.into_iter().zip(widths);
                tensors
                    .map(|(part, width)| Tensor::from_vec(part, (m, width), x.device()))
                    .collect::<Result<_>>()?
            }
        };
        parts.try_into().map_err(|_| candle_core::Error::Msg(format!("not {P} parts")))
    }

    /// Rows of the weight by number, `[ids, K]`: what an embedding table is for.
    ///
    /// The caller sees to it that there are such rows.
    pub(crate) fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        match self {
            Self::Whole(weight) => {
                weight.index_select(&Tensor::from_slice(ids, ids.len(), weight.device())?, 0)
            }
            Self::Packed { matrix, k, .. } => {
                let mut rows = vec![0.0; ids.len() * k];
                for (&id, row) in ids.iter().zip(rows.chunks_exact_mut((*k).max(1))) {
                    matrix.read_row(id as usize, row);
                }
                Tensor::from_vec(rows, (ids.len(), *k), &Device::Cpu)
            }
        }
    }
}

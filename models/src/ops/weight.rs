//! Weights of layers: packed for the CPU kernels, tensors elsewhere.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use ntl_kernels::{Codes, Format, Matrix};
use rayon::prelude::*;

use super::tensors::{is_placeholder, kernels_compute, matmul, slice, uses_kernels};

/// Number of a table's rows from which threads share reading them.
const PARALLEL_MIN: usize = 32;

/// The weights that are codes of 4 to 6 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodedWeights {
    None,
    /// Those that the file stores as codes.
    Stored,
    /// Those too, and the others that can be quantised.
    All,
}

/// The device and the element types in which a model stores and computes.
#[derive(Debug, Clone)]
pub struct Placement {
    pub(crate) device: Device,
    /// Element type of weights and matmuls. The residual stream, normalisation, softmax and logits are f32.
    pub(crate) dtype: DType,
    /// Element type of the keys and values of contexts; `None` for the type of matmuls.
    pub(crate) kv: Option<DType>,
    /// Format of packed weights on the CPU.
    pub(crate) format: Format,
    /// Which weights of decoder-only models are codes of 4 to 6 bits on the CPU.
    pub(crate) coded: CodedWeights,
    /// Whether steps on a GPU may be replayed as CUDA graphs.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs have them"))]
    pub(crate) cuda_graphs: bool,
}

impl Placement {
    /// Creates a placement on the CPU. Everything there is computed in f32.
    pub(crate) fn cpu(format: Format) -> Self {
        Self {
            device: Device::Cpu,
            dtype: DType::F32,
            kv: None,
            format,
            coded: CodedWeights::None,
            cuda_graphs: false,
        }
    }

    /// Returns the same placement for weights that stay in f32, regardless of the other weights.
    pub(crate) fn exact(&self) -> Self {
        Self { dtype: DType::F32, ..self.clone() }
    }

    /// Returns whether the CPU kernels compute here. Elsewhere, everything is composed of candle's
    /// operations.
    pub(crate) fn uses_kernels(&self) -> bool {
        kernels_compute(&self.device, self.dtype)
    }

    /// Returns which weights are codes here.
    pub(crate) fn coded(&self) -> CodedWeights {
        if self.uses_kernels() { self.coded } else { CodedWeights::None }
    }

    /// Returns the element type of the keys and values of contexts.
    pub(crate) fn kv_dtype(&self) -> DType {
        self.kv.unwrap_or(self.dtype)
    }

    /// Returns the placeholder of a tensor.
    pub(crate) fn placeholder(&self, shape: &[usize]) -> Result<Tensor> {
        Tensor::zeros((), self.dtype, &self.device)?.broadcast_as(shape)
    }

    /// Returns the memory of `weights` packed weights, in bytes.
    pub(crate) fn bytes(&self, weights: u64) -> u64 {
        match (&self.device, self.format) {
            (Device::Cpu, Format::Bf16 | Format::F16) => weights * 2,
            // The scale of each output is not counted.
            (Device::Cpu, Format::Int8) => weights,
            // One 16-bit scale per 32 bytes.
            (Device::Cpu, Format::Q8) => weights + weights.div_ceil(16),
            _ => weights * self.dtype.size_in_bytes() as u64,
        }
    }

    /// Returns the factor by which a multiplication of a prompt's attention takes longer than one of a
    /// matmul. The engine measures time, so the factor affects only how soon its limits are accurate.
    ///
    /// Fitted to prompts of 1,000 and 16,000 tokens of SmolLM2-135M on two cores of Zen 4, whose times are
    /// proportional to `matmul + factor * attention` multiplications: 1.01 for f32 and 3.1 for int8. For
    /// devices it is estimated.
    pub(crate) fn attention_work(&self) -> f64 {
        match (&self.device, self.format) {
            (Device::Cpu, Format::Int8 | Format::Q8) => 3.0,
            (Device::Cpu, _) => 1.0,
            _ => 4.0,
        }
    }

    /// Returns the element type of weights by its name in `--dtype`.
    pub(crate) fn name(&self) -> &'static str {
        match (&self.device, self.format) {
            (Device::Cpu, _) if self.coded == CodedWeights::Stored => "gguf",
            (Device::Cpu, _) if self.coded == CodedWeights::All => "q4_k",
            (Device::Cpu, Format::Bf16) => "bf16",
            (Device::Cpu, Format::F16) => "f16",
            (Device::Cpu, Format::Int8) => "int8",
            (Device::Cpu, Format::Q8) => "q8_0",
            _ => self.dtype.as_str(),
        }
    }

    /// Returns the element type of keys and values by its name in `--kv-cache-dtype`.
    pub(crate) fn kv_name(&self) -> &'static str {
        match self.kv_dtype() {
            DType::F8E4M3 => "fp8",
            dtype => dtype.as_str(),
        }
    }
}

impl Default for Placement {
    fn default() -> Self {
        Self::cpu(Format::F32)
    }
}

/// A weight `[N, K]`, as stored by `torch.nn.Linear`. Clones share it.
#[derive(Debug, Clone)]
pub(crate) enum Weight {
    Packed(Arc<Matrix>),
    Whole(Tensor),
}

/// The matmul of `x` and a weight, `[M, N]`: plain numbers if kernels computed it, otherwise a tensor.
pub(crate) enum Product {
    Values { values: Vec<f32>, n: usize },
    Tensor(Tensor),
}

impl Product {
    /// Adds a bias f32 `[N]` to each row.
    pub(crate) fn biased(self, bias: &Tensor) -> Result<Self> {
        match self {
            Self::Values { mut values, n } => {
                let (storage, layout) = bias.storage_and_layout();
                let bias = slice(&storage, layout)?;
                values.chunks_exact_mut(n.max(1)).for_each(|row| ntl_kernels::add(row, bias));
                Ok(Self::Values { values, n })
            }
            Self::Tensor(tensor) => Ok(Self::Tensor(tensor.to_dtype(DType::F32)?.broadcast_add(bias)?)),
        }
    }

    /// Returns `cap * tanh(x / cap)` for each element `x`.
    pub(crate) fn capped(self, cap: f32) -> Result<Self> {
        match self {
            Self::Values { mut values, n } => {
                ntl_kernels::soft_cap(&mut values, cap);
                Ok(Self::Values { values, n })
            }
            Self::Tensor(tensor) => {
                let cap = f64::from(cap);
                Ok(Self::Tensor(((tensor.to_dtype(DType::F32)? / cap)?.tanh()? * cap)?))
            }
        }
    }
}

impl Weight {
    /// Packs a tensor `[N, K]`. A placeholder stays a tensor.
    pub(crate) fn new(tensor: Tensor, place: &Placement) -> Result<Self> {
        if !uses_kernels(&tensor) || is_placeholder(&tensor) {
            return Ok(Self::Whole(tensor));
        }
        let (n, k) = tensor.dims2()?;
        let tensor = tensor.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        Ok(Self::Packed(Arc::new(Matrix::pack(slice(&storage, layout)?, [n, k], place.format))))
    }

    /// Packs the codes of a weight `[N, K]`.
    pub(crate) fn of_codes(codes: &Codes, shape: [usize; 2]) -> Self {
        Self::Packed(Arc::new(Matrix::pack_codes(codes, shape)))
    }

    /// Maps `x` `[M, K]` to `[M, N]`, without bias, computed in the element type of the weight.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Whole(weight) => matmul(&x.to_dtype(weight.dtype())?, &weight.t()?),
            Self::Packed(matrix) => tensor(x, product(matrix, x)?, matrix.outputs()),
        }
    }

    /// Returns the element type of the weight, in which the matmul is computed.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::Whole(weight) => weight.dtype(),
            Self::Packed(_) => DType::F32,
        }
    }

    /// Returns the rows of the weight with these ids, `[ids, K]`, as for an embedding table. The caller
    /// checks the ids.
    pub(crate) fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        match self {
            Self::Whole(weight) => {
                weight.index_select(&Tensor::from_slice(ids, ids.len(), weight.device())?, 0)
            }
            Self::Packed(matrix) => {
                let k = matrix.inputs();
                let mut rows = vec![0.0; ids.len() * k];
                let read = |(&id, row): (&u32, &mut [f32])| matrix.read_row(id as usize, row);
                if ids.len() < PARALLEL_MIN {
                    ids.iter().zip(rows.chunks_exact_mut(k.max(1))).for_each(read);
                } else {
                    ids.par_iter().zip(rows.par_chunks_exact_mut(k.max(1))).for_each(read);
                }
                Tensor::from_vec(rows, (ids.len(), k), &Device::Cpu)
            }
        }
    }
}

/// Returns `[M, N]` for `x` `[M, K]`.
pub(super) fn product(matrix: &Matrix, x: &Tensor) -> Result<Vec<f32>> {
    product_parts(matrix, x, [matrix.outputs()]).map(|[all]| all)
}

pub(super) fn product_parts<const P: usize>(
    matrix: &Matrix,
    x: &Tensor,
    widths: [usize; P],
) -> Result<[Vec<f32>; P]> {
    let (storage, layout) = x.storage_and_layout();
    Ok(matrix.product_parts(slice(&storage, layout)?, x.dim(0)?, widths))
}

/// Returns `values` `[M, N]` as a tensor with as many rows as `x` has.
pub(super) fn tensor(x: &Tensor, values: Vec<f32>, n: usize) -> Result<Tensor> {
    Tensor::from_vec(values, (x.dim(0)?, n), x.device())
}

//! The operations of a layer between its matmuls, in one launch each: normalisation, writing keys and values
//! to the cache, activations.

use candle_core::{DType, Result, Tensor};

use crate::image::LAYER;
use crate::launch::{Call, Grid, cached_suffix, gpu, output, suffix};

const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;
const THREADS_MAX: usize = 1024;

/// Normalises the rows of `x` f32 `[M, K]` by their root mean square or, with a bias, by mean and variance.
/// Weight and bias are f32 `[K]`. The result is rounded once, to `dtype`.
pub fn norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f64, dtype: DType) -> Result<Tensor> {
    let ((rows, width), device) = (x.dims2()?, gpu(x)?);
    let out = output(device, &[rows, width], dtype)?;
    let mut call = Call::new(device, &LAYER, &format!("norm_{}", suffix(dtype)?))?;
    call.tensor(x, DType::F32, rows * width)?
        .tensor(weight, DType::F32, width)?
        .optional(bias, DType::F32, width)?
        .tensor(&out, dtype, rows * width)?
        .int(width)?
        .float(eps as f32);
    let threads = width.div_ceil(Grid::AT_ONCE).next_multiple_of(32).min(THREADS_MAX);
    // SAFETY: the arguments match the kernel's parameters. It has one block for each row of both tensors.
    unsafe { call.launch(Grid { blocks: [rows, 1, 1], threads, shared_bytes: 0 })? };
    Ok(out)
}

/// Adds `y` f32 `[M, W]`, or the same row `[W]` for all, to `x` f32 `[M, W]` in place. No other tensor may
/// share the storage of `x`.
pub fn add(x: &Tensor, y: &Tensor) -> Result<()> {
    let ((rows, width), device) = (x.dims2()?, gpu(x)?);
    let is_one_row = y.rank() == 1;
    let mut call = Call::new(device, &LAYER, "add_f32")?;
    call.tensor(x, DType::F32, rows * width)?
        .tensor(y, DType::F32, if is_one_row { width } else { rows * width })?
        .int(width)?
        .int(usize::from(is_one_row))?;
    // SAFETY: the arguments match the kernel's parameters. Its blocks process the rows of `x`, for each of
    // which `y` has a row of as many elements, or one for all. `x` is written through a shared borrow: it is
    // device memory, which only later launches on the single stream read.
    unsafe { call.launch(Grid::of_rows(rows, width)) }
}

/// Activations, with the same numbers as in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Relu = 0,
    Gelu = 1,
    GeluTanh = 2,
    Silu = 3,
}

/// Returns `[M, W]`: the activation of `x` f32 `[M, W]` or, if `is_gated`, the activation of the left half of
/// `[M, 2 * W]` times the right half. Computed in f32 and rounded once, to `dtype`.
pub fn activate(x: &Tensor, activation: Activation, is_gated: bool, dtype: DType) -> Result<Tensor> {
    let ((rows, columns), device) = (x.dims2()?, gpu(x)?);
    if is_gated && !columns.is_multiple_of(2) {
        candle_core::bail!("{columns} columns cannot be divided into halves")
    }
    let width = if is_gated { columns / 2 } else { columns };
    let out = output(device, &[rows, width], dtype)?;
    let mut call = Call::new(device, &LAYER, &format!("activate_{}", suffix(dtype)?))?;
    call.tensor(x, DType::F32, rows * columns)?
        .tensor(&out, dtype, rows * width)?
        .int(width)?
        .int(activation as usize)?
        .int(usize::from(is_gated))?;
    // SAFETY: the arguments match the kernel's parameters. Its blocks process the rows of `out`, for each of
    // which `x` has a row of as many elements, or twice as many if they are gated.
    unsafe { call.launch(Grid::of_rows(rows, width))? };
    Ok(out)
}

/// Queries, keys and values of rows, and the operations before keys and values are stored in the cache.
pub struct Projections<'a> {
    /// f32 `[R, (H + 2 * G) * D]`.
    pub qkv: &'a Tensor,
    /// Number of query heads; may be 0.
    pub heads: usize,
    pub num_kv_heads: usize,
    /// Cosines and sines of the rotation of queries and keys, f32 `[R, 2, P]`. The elements of a head after
    /// its P pairs are not rotated.
    pub rope: Option<&'a Tensor>,
    /// Weights f32 with which queries and keys are normalised before the rotation, by their root mean square:
    /// `[D]` for each head by itself, or `[H * D]` and `[G * D]` for all heads of a row together.
    pub q_norm: Option<&'a Tensor>,
    pub k_norm: Option<&'a Tensor>,
    pub eps: f64,
}

impl Projections<'_> {
    /// Writes keys and values to the slots u32 `[R]` of `slab` `[2 * capacity, G * D]`: keys of all slots,
    /// then their values. Slots that do not exist are skipped. Returns the queries f32 `[R, H * D]`, if there
    /// are any.
    pub fn store(&self, slab: &Tensor, slots: &Tensor) -> Result<Option<Tensor>> {
        let ((rows, columns), (places, width), device) = (self.qkv.dims2()?, slab.dims2()?, gpu(self.qkv)?);
        let heads = self.heads;
        let num_kv_heads = self.num_kv_heads;
        let dtype = slab.dtype();
        if num_kv_heads == 0 || !width.is_multiple_of(num_kv_heads) {
            candle_core::bail!("{width} elements are not {num_kv_heads} heads")
        }
        let dim = width / num_kv_heads;
        let pairs = match self.rope {
            Some(rope) => rope.dims3()?.2,
            None => 0,
        };
        if columns != (heads + 2 * num_kv_heads) * dim || 2 * pairs > dim {
            candle_core::bail!(
                "{columns} columns are not {heads} + 2 * {num_kv_heads} heads of {dim} elements"
            )
        }
        if rows * dim == 0 {
            candle_core::bail!("{rows} rows of heads of {dim} elements: nothing to store")
        }
        let mut norms = [self.q_norm, self.k_norm].into_iter().flatten();
        let norms_rows = norms.any(|weight| weight.elem_count() != dim);
        let (q_normed, k_normed) = if norms_rows { (heads * dim, num_kv_heads * dim) } else { (dim, dim) };
        let q = if heads > 0 { Some(output(device, &[rows, heads * dim], DType::F32)?) } else { None };
        let mut call = Call::new(device, &LAYER, &format!("store_kv_{}", cached_suffix(dtype)?))?;
        call.tensor(self.qkv, DType::F32, rows * columns)?
            .tensor(slots, DType::U32, rows)?
            .optional(self.rope, DType::F32, rows * 2 * pairs)?
            .optional(self.q_norm, DType::F32, q_normed)?
            .optional(self.k_norm, DType::F32, k_normed)?
            .optional(q.as_ref(), DType::F32, rows * heads * dim)?
            .tensor(slab, dtype, places * width)?
            .float(self.eps as f32)
            .int(heads)?
            .int(num_kv_heads)?
            .int(dim)?
            .int(pairs)?
            .int(usize::from(norms_rows))?
            .int(places / 2)?;
        let blocks = [rows, (heads + 2 * num_kv_heads).div_ceil(WARPS), 1];
        // SAFETY: the arguments match the kernel's parameters. It has one warp for each head of each row of
        // `qkv`, and skips slots beyond the slab. The slab is written through a shared borrow: it is device
        // memory, which only later launches on the single stream read.
        unsafe { call.launch(Grid { blocks, threads: THREADS, shared_bytes: 0 })? };
        Ok(q)
    }
}

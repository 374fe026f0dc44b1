//! Plain slices of CPU tensors, and the vector loops over them.

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor};
use pulp::Simd;

/// Whether the loops of this module apply.
pub(super) fn is_plain(tensor: &Tensor) -> bool {
    tensor.device().is_cpu() && tensor.dtype() == DType::F32
}

/// The numbers of a contiguous f32 CPU tensor.
pub(super) fn slice<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [f32]> {
    let (Storage::Cpu(CpuStorage::F32(values)), Some((from, to))) = (storage, layout.contiguous_offsets())
    else {
        candle_core::bail!("expected a contiguous f32 tensor on the CPU")
    };
    Ok(&values[from..to])
}

/// Sum of products, always added up in the same order for a given length.
#[inline(always)]
pub(super) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a_body, a_tail), (b_body, b_tail)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let mut sum = simd.splat_f32s(0.0);
    for (&a, &b) in a_body.iter().zip(b_body) {
        sum = simd.mul_add_f32s(a, b, sum);
    }
    sum = simd.mul_add_f32s(simd.partial_load_f32s(a_tail), simd.partial_load_f32s(b_tail), sum);
    simd.reduce_sum_f32s(sum)
}

/// `sum += scale * row`.
#[inline(always)]
pub(super) fn add_scaled<S: Simd>(simd: S, sum: &mut [f32], scale: f32, row: &[f32]) {
    let (sum_body, sum_tail) = S::as_mut_simd_f32s(sum);
    let (row_body, row_tail) = S::as_simd_f32s(row);
    let factor = simd.splat_f32s(scale);
    for (sum, &row) in sum_body.iter_mut().zip(row_body) {
        *sum = simd.mul_add_f32s(factor, row, *sum);
    }
    for (sum, &row) in sum_tail.iter_mut().zip(row_tail) {
        *sum += scale * row;
    }
}

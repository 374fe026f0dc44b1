//! int8 matmul with AVX2, a few rows and part of a panel at a time.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::x86_64::{
    __m256, __m256i, _mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_si256,
};

use super::rows::Rows;
use super::{Panel, QUADS_PER_STEP, WIDTH};
use crate::ahead::Ahead;
use crate::matmul::avx2::{Avx2, Weights};
use crate::matmul::tiles::tile_sizes;

/// Maximum number of rows in a tile.
const ROWS_MAX: usize = 4;

/// Number of outputs in a register.
const LANES: usize = 8;

/// Number of registers for a panel's outputs.
const VECTORS: usize = WIDTH / LANES;

/// `out` is `[M, WIDTH]`.
pub(super) fn panel(_: Avx2, rows: &Rows, panel: Panel<'_>, out: &mut [f32]) {
    let mut first = 0;
    let mut rest = out;
    let mut ahead = panel.ahead(rows.len().div_ceil(ROWS_MAX));
    for count in tile_sizes(rows.len(), ROWS_MAX) {
        let (out, others) = rest.split_at_mut(count * WIDTH);
        // SAFETY: an `Avx2` exists only if these instructions were detected.
        unsafe {
            // The sums of a tile use half of the registers.
            match count {
                1 => set_rows::<1, VECTORS>(rows, first, panel, &mut ahead, out),
                2 => set_rows::<2, { VECTORS / 2 }>(rows, first, panel, &mut ahead, out),
                3 => set_rows::<3, { VECTORS / 4 }>(rows, first, panel, &mut ahead, out),
                _ => set_rows::<ROWS_MAX, { VECTORS / 4 }>(rows, first, panel, &mut ahead, out),
            }
        }
        (first, rest) = (first + count, others);
    }
}

/// Sets `out` `[M, WIDTH]` for rows starting at `first`, `V` registers of outputs at a time.
#[target_feature(enable = "avx2")]
fn set_rows<const M: usize, const V: usize>(
    rows: &Rows,
    first: usize,
    panel: Panel<'_>,
    ahead: &mut Ahead<'_>,
    out: &mut [f32],
) {
    let weights = bytemuck::cast_slice::<i8, __m256i>(panel.values).as_chunks::<VECTORS>().0;
    let quads = weights.len();
    let mut x = [[].as_slice(); M];
    x.iter_mut().zip(rows.signed_quads()[first * quads..].chunks_exact(quads)).for_each(|(x, row)| *x = row);
    for part in (0..VECTORS).step_by(V) {
        let mut sums = [[_mm256_setzero_si256(); V]; M];
        for (quad, weights) in weights.iter().enumerate() {
            if quad % QUADS_PER_STEP == 0 {
                ahead.step();
            }
            let mut these = [_mm256_setzero_si256(); V];
            these.copy_from_slice(&weights[part..part + V]);
            let weights = these.map(|weights| Weights::new(weights));
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = _mm256_set1_epi32(x[quad]);
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    *sum = weights.dot(*sum, x);
                }
            }
        }
        let scales = &bytemuck::cast_ref::<_, [__m256; VECTORS]>(panel.scales)[part..part + V];
        for (row, sums) in sums.into_iter().enumerate() {
            let row_scale = _mm256_set1_ps(rows.scale(first + row));
            let out = &mut out[row * WIDTH + part * LANES..][..V * LANES];
            for ((out, sum), &scale) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums).zip(scales) {
                let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
                *out = bytemuck::cast(_mm256_mul_ps(scaled, row_scale));
            }
        }
    }
}

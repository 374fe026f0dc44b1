//! int8 matmul with AVX-512 VNNI, a few rows and a complete panel at a time.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_mul_ps, _mm512_set1_epi32,
    _mm512_set1_ps,
};

use super::rows::Rows;
use super::{Panel, QUADS_PER_STEP, WIDTH};
use crate::ahead::Ahead;
use crate::matmul::tiles::tile_sizes;
use crate::matmul::vnni::Vnni;

/// Maximum number of rows in a tile, so that their sums fit the registers.
const ROWS_MAX: usize = 6;

/// Number of registers for a panel's outputs.
const VECTORS: usize = WIDTH / 16;

/// `out` is `[M, WIDTH]`.
pub(super) fn panel(_: Vnni, rows: &Rows, panel: Panel<'_>, out: &mut [f32]) {
    let mut first = 0;
    let mut rest = out;
    let mut ahead = panel.ahead(rows.len().div_ceil(ROWS_MAX));
    for count in tile_sizes(rows.len(), ROWS_MAX) {
        let (out, others) = rest.split_at_mut(count * WIDTH);
        // SAFETY: a `Vnni` exists only if these instructions were detected.
        unsafe {
            match count {
                1 => set_tile::<1>(rows, first, panel, &mut ahead, out),
                2 => set_tile::<2>(rows, first, panel, &mut ahead, out),
                3 => set_tile::<3>(rows, first, panel, &mut ahead, out),
                4 => set_tile::<4>(rows, first, panel, &mut ahead, out),
                5 => set_tile::<5>(rows, first, panel, &mut ahead, out),
                _ => set_tile::<ROWS_MAX>(rows, first, panel, &mut ahead, out),
            }
        }
        (first, rest) = (first + count, others);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn set_tile<const M: usize>(
    rows: &Rows,
    first: usize,
    panel: Panel<'_>,
    ahead: &mut Ahead<'_>,
    out: &mut [f32],
) {
    let weights = bytemuck::cast_slice::<i8, __m512i>(panel.values).as_chunks::<VECTORS>().0;
    let mut x = [[].as_slice(); M];
    for (row, x) in x.iter_mut().enumerate() {
        *x = &rows.quads(first + row)[..weights.len()];
    }
    let starts: [__m512i; VECTORS] = bytemuck::cast(*panel.starts);
    let mut sums = [starts; M];
    for (quad, weights) in weights.iter().enumerate() {
        if quad % QUADS_PER_STEP == 0 {
            ahead.step();
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            let x = _mm512_set1_epi32(x[quad]);
            for (sum, &weights) in sums.iter_mut().zip(weights) {
                *sum = _mm512_dpbusd_epi32(*sum, x, weights);
            }
        }
    }
    let scales: [__m512; VECTORS] = bytemuck::cast(*panel.scales);
    for (row, (out, sums)) in out.as_chunks_mut::<WIDTH>().0.iter_mut().zip(sums).enumerate() {
        let row_scale = _mm512_set1_ps(rows.scale(first + row));
        let mut values = [_mm512_set1_ps(0.0); VECTORS];
        for ((value, sum), scale) in values.iter_mut().zip(sums).zip(scales) {
            *value = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), row_scale);
        }
        *out = bytemuck::cast(values);
    }
}

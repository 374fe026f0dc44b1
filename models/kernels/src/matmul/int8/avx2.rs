//! int8 matmul with AVX2: bytes become 16-bit integers, whose products are added up in pairs without
//! overflow.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::x86_64::{
    __m128i, __m256i, _mm_set1_epi32, _mm256_add_epi32, _mm256_cvtepi8_epi16, _mm256_cvtepu8_epi16,
    _mm256_hadd_epi32, _mm256_madd_epi16, _mm256_permute4x64_epi64, _mm256_setzero_si256,
};

use super::rows::Rows;
use super::{Panel, QUAD, WIDTH, scaled};
use crate::matmul::tiles::tile_sizes;

/// Number of outputs in a tile.
const OUTPUTS: usize = 16;
/// Number of registers for one row's sums in a tile.
const SUMS: usize = OUTPUTS * QUAD / 16;
/// Maximum number of rows in a tile, so that their sums fit the registers.
const ROWS_MAX: usize = 2;

/// Proof that this CPU has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn new() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    pub(super) fn panel(self, rows: &Rows, panel: Panel<'_>, out: &mut [f32]) {
        let mut first = 0;
        for count in tile_sizes(rows.len(), ROWS_MAX) {
            for column in (0..WIDTH).step_by(OUTPUTS) {
                let out = &mut out[first * WIDTH..][..count * WIDTH];
                // SAFETY: `self` exists only if these instructions were detected.
                unsafe {
                    match count {
                        1 => set_tile::<1>(rows, first, panel, column, out),
                        _ => set_tile::<ROWS_MAX>(rows, first, panel, column, out),
                    }
                }
            }
            first += count;
        }
    }
}

/// Sets `out` `[M, WIDTH]` for rows starting at `first` and [`OUTPUTS`] outputs starting at `column`.
#[target_feature(enable = "avx2")]
fn set_tile<const M: usize>(rows: &Rows, first: usize, panel: Panel<'_>, column: usize, out: &mut [f32]) {
    let x: [&[i32]; M] = std::array::from_fn(|row| rows.quads(first + row));
    let weights = bytemuck::cast_slice::<i8, __m128i>(panel.values);
    let weights = weights.as_chunks::<{ WIDTH / OUTPUTS * SUMS }>().0;
    let mut sums = [[_mm256_setzero_si256(); SUMS]; M];
    for (quad, weights) in weights.iter().enumerate() {
        let mut wide = [_mm256_setzero_si256(); SUMS];
        for (wide, &weights) in wide.iter_mut().zip(&weights[column / OUTPUTS * SUMS..][..SUMS]) {
            *wide = _mm256_cvtepi8_epi16(weights);
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            let x = _mm256_cvtepu8_epi16(_mm_set1_epi32(x[quad]));
            for (sum, &wide) in sums.iter_mut().zip(&wide) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(x, wide));
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        let mut whole = [_mm256_setzero_si256(); SUMS / 2];
        for (whole, pair) in whole.iter_mut().zip(sums.as_chunks::<2>().0) {
            // Halves of the registers are added up separately, which leaves the outputs in the order 0 1 4 5
            // 2 3 6 7.
            *whole = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(pair[0], pair[1]));
        }
        let whole = bytemuck::cast_slice::<__m256i, i32>(&whole);
        let starts = &panel.starts[column..];
        let scales = &panel.scales[column..];
        let out = &mut out[row * WIDTH + column..][..OUTPUTS];
        for (((out, sum), start), &scale) in out.iter_mut().zip(whole).zip(starts).zip(scales) {
            *out = scaled(sum.wrapping_add(*start), scale, rows.scale(first + row));
        }
    }
}

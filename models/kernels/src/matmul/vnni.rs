//! int8 matmul with AVX-512 VNNI: 64 multiplications per instruction, added up as 32-bit integers.
//!
//! One operand of the instruction is unsigned, so `OFFSET` is added to weights. Its contribution to a sum
//! depends only on the row and is subtracted from the sum's initial value.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
};

use super::bytes::{self, Tile};
use super::columns::Columns;
use super::quantized::{GROUP, Panel, QUAD, Quantized};
use crate::ahead::Ahead;

/// Maximum number of rows in a tile. Their sums, as integers and as f32, fill the registers.
const ROWS_MAX: usize = 12;

/// Proof that this CPU has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Vnni(());

impl Vnni {
    /// Name of these instructions in tests.
    #[cfg(test)]
    pub(super) const NAME: &str = "vnni";

    pub(super) fn new() -> Option<Self> {
        let is_supported = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        is_supported.then_some(Self(()))
    }

    /// Returns `[M, N]` for `x` `[M, K]`. Neither may be empty.
    pub(super) fn product<'a>(self, weight: &'a Quantized, x: &[f32]) -> Columns<'a> {
        bytes::product(weight, x, ROWS_MAX, move |tile, panel, ahead, out| {
            self.set_tile(tile, panel, ahead, out);
        })
    }

    fn set_tile(self, tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
        // SAFETY: `self` exists only if these instructions were detected.
        unsafe {
            match tile.rows {
                1 => set_tile::<1>(tile, panel, ahead, out),
                2 => set_tile::<2>(tile, panel, ahead, out),
                3 => set_tile::<3>(tile, panel, ahead, out),
                4 => set_tile::<4>(tile, panel, ahead, out),
                5 => set_tile::<5>(tile, panel, ahead, out),
                6 => set_tile::<6>(tile, panel, ahead, out),
                7 => set_tile::<7>(tile, panel, ahead, out),
                8 => set_tile::<8>(tile, panel, ahead, out),
                9 => set_tile::<9>(tile, panel, ahead, out),
                10 => set_tile::<10>(tile, panel, ahead, out),
                11 => set_tile::<11>(tile, panel, ahead, out),
                _ => set_tile::<ROWS_MAX>(tile, panel, ahead, out),
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn set_tile<const M: usize>(tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
    let (quads, _) = tile.quads.as_chunks::<M>();
    let scales = tile.scales.as_chunks::<M>().0;
    let starts = tile.starts.as_chunks::<M>().0;
    let weights = bytemuck::cast_slice::<u8, __m512i>(panel.values);
    let weight_scales = bytemuck::cast_slice::<_, __m256i>(panel.scales);
    let mut sums = [_mm512_setzero_ps(); M];
    let groups = weights.chunks_exact(GROUP / QUAD).zip(quads.chunks_exact(GROUP / QUAD));
    let of_group = weight_scales.iter().zip(scales.iter().zip(starts));
    for ((weights, quads), (&weight_scales, (scales, starts))) in groups.zip(of_group) {
        ahead.step();
        let mut integers = [_mm512_setzero_si512(); M];
        for (integers, &start) in integers.iter_mut().zip(starts) {
            *integers = _mm512_set1_epi32(start);
        }
        for (&weights, quads) in weights.iter().zip(quads) {
            for (integers, &quad) in integers.iter_mut().zip(quads) {
                *integers = _mm512_dpbusd_epi32(*integers, weights, _mm512_set1_epi32(quad));
            }
        }
        let weight_scales = _mm512_cvtph_ps(weight_scales);
        for ((sum, integers), &scale) in sums.iter_mut().zip(integers).zip(scales) {
            let scales = _mm512_mul_ps(weight_scales, _mm512_set1_ps(scale));
            *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), scales, *sum);
        }
    }
    out.copy_from_slice(bytemuck::cast_slice::<__m512, f32>(&sums));
}

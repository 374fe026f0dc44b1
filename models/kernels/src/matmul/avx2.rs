//! int8 matmul with AVX2: 32 multiplications in three instructions, added up as 32-bit integers.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm256_abs_epi8, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_sign_epi8, _mm256_xor_si256,
};

use super::bytes::{self, Tile};
use super::columns::Columns;
use super::quantized::{GROUP, OFFSET, Panel, QUAD, Quantized, WIDTH};
use crate::ahead::Ahead;

/// Number of vectors for the outputs of a panel.
const VECTORS: usize = WIDTH / 8;

/// Maximum number of rows in a tile. Their sums, as integers and as f32, fill the registers.
const ROWS_MAX: usize = 4;

/// Proof that this CPU has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn new() -> Option<Self> {
        let is_supported = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
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
                _ => set_tile::<ROWS_MAX>(tile, panel, ahead, out),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn set_tile<const M: usize>(tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
    let (quads, _) = tile.quads.as_chunks::<M>();
    let scales = tile.scales.as_chunks::<M>().0;
    let weights = bytemuck::cast_slice::<u8, [__m256i; VECTORS]>(panel.values);
    let weight_scales = bytemuck::cast_slice::<_, [__m128i; VECTORS]>(panel.scales);
    let offset = _mm256_set1_epi8((OFFSET as u8).cast_signed());
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; M];
    let groups = weights.chunks_exact(GROUP / QUAD).zip(quads.chunks_exact(GROUP / QUAD));
    for ((weights, quads), (weight_scales, scales)) in groups.zip(weight_scales.iter().zip(scales)) {
        ahead.step();
        let mut integers = [[_mm256_setzero_si256(); VECTORS]; M];
        for (weights, quads) in weights.iter().zip(quads) {
            let weights = weights.map(|weights| Weights::new(_mm256_xor_si256(weights, offset)));
            for (integers, &quad) in integers.iter_mut().zip(quads) {
                let quad = _mm256_set1_epi32(quad);
                for (integers, weights) in integers.iter_mut().zip(weights) {
                    *integers = weights.dot(*integers, quad);
                }
            }
        }
        for ((sums, integers), &scale) in sums.iter_mut().zip(integers).zip(scales) {
            for ((sum, integers), &weight_scales) in sums.iter_mut().zip(integers).zip(weight_scales) {
                let scales = _mm256_mul_ps(_mm256_cvtph_ps(weight_scales), _mm256_set1_ps(scale));
                *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), scales, *sum);
            }
        }
    }
    out.copy_from_slice(bytemuck::cast_slice::<[__m256; VECTORS], f32>(&sums));
}

/// Integers of a weight between -127 and 127, and their absolute values.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    signed: __m256i,
    absolute: __m256i,
}

impl Weights {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn new(signed: __m256i) -> Self {
        Self { signed, absolute: _mm256_abs_epi8(signed) }
    }

    /// Adds the products of each 4 bytes and 4 bytes of `x`, all between -127 and 127, to 8 sums. The
    /// instruction needs an unsigned operand, so the sign of a weight moves to `x`. Two products fit into 16
    /// bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn dot(self, sums: __m256i, x: __m256i) -> __m256i {
        let pairs = _mm256_maddubs_epi16(self.absolute, _mm256_sign_epi8(x, self.signed));
        _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

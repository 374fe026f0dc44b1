//! Matmul of codes with AVX2: 32 multiplications per instruction, added up in pairs as 16-bit integers.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps,
    _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps,
    _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi16, _mm256_srli_epi16,
};

use super::{CodeBits, Panel, QUADS, WIDTH};
use crate::ahead::Ahead;
use crate::matmul::avx2::Avx2;
use crate::matmul::bytes::Tile;

/// Number of vectors for the outputs of a panel.
const VECTORS: usize = WIDTH / 8;

/// `out` is `[rows, WIDTH]`.
pub(super) fn set_tile(_: Avx2, tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
    // SAFETY: an `Avx2` exists only if these instructions were detected.
    unsafe {
        match panel.bits {
            CodeBits::Four => set_tile_of::<4>(tile, panel, ahead, out),
            CodeBits::Five => set_tile_of::<5>(tile, panel, ahead, out),
            CodeBits::Six => set_tile_of::<6>(tile, panel, ahead, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn set_tile_of<const BITS: usize>(tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
    match tile.rows {
        1 => set_rows::<BITS, 1>(tile, panel, ahead, out),
        2 => set_rows::<BITS, 2>(tile, panel, ahead, out),
        3 => set_rows::<BITS, 3>(tile, panel, ahead, out),
        _ => set_rows::<BITS, 4>(tile, panel, ahead, out),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn set_rows<const BITS: usize, const M: usize>(
    tile: &Tile,
    panel: Panel<'_>,
    ahead: &mut Ahead<'_>,
    out: &mut [f32],
) {
    let records = bytemuck::cast_slice::<u8, [__m256i; VECTORS]>(panel.records).chunks_exact(BITS + 1);
    let quads = tile.quads.as_chunks::<M>().0.as_chunks::<QUADS>().0;
    let of_rows = tile.scales.as_chunks::<M>().0.iter().zip(tile.totals.as_chunks::<M>().0);
    let of_rows = of_rows.zip(tile.halves.as_chunks::<M>().0);
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; M];
    for ((record, quads), ((scales, totals), halves)) in records.zip(quads).zip(of_rows) {
        ahead.step();
        let params = bytemuck::cast::<_, [[__m128i; VECTORS]; 2]>(record[BITS]);
        for vector in 0..VECTORS {
            let mut integers = [[_mm256_setzero_si256(); M]; 2];
            if BITS == 6 {
                for (row, halves) in halves.iter().enumerate() {
                    integers[0][row] = _mm256_set1_epi32(-32 * halves[0]);
                    integers[1][row] = _mm256_set1_epi32(-32 * halves[1]);
                }
            }
            let mut upper = upper::<BITS>(record, vector);
            for line in 0..QUADS / 2 {
                let codes = codes::<BITS>(record[line][vector], &mut upper);
                let quads = [&quads[line], &quads[QUADS / 2 + line]];
                for row in 0..M {
                    let [low, high] = [products(codes[0], quads[0][row]), products(codes[1], quads[1][row])];
                    if BITS == 6 {
                        integers[0][row] = added(integers[0][row], low);
                        integers[1][row] = added(integers[1][row], high);
                    } else {
                        // Four products of at most 31 and 127 fit into 16 bits.
                        integers[0][row] = added(integers[0][row], _mm256_add_epi16(low, high));
                    }
                }
            }
            let [first, second] = params.map(|line| _mm256_cvtph_ps(line[vector]));
            for (row, sums) in sums.iter_mut().enumerate() {
                let scale = _mm256_set1_ps(scales[row]);
                let low = _mm256_cvtepi32_ps(integers[0][row]);
                let sum = _mm256_fmadd_ps(low, _mm256_mul_ps(first, scale), sums[vector]);
                sums[vector] = if BITS == 6 {
                    let high = _mm256_cvtepi32_ps(integers[1][row]);
                    _mm256_fmadd_ps(high, _mm256_mul_ps(second, scale), sum)
                } else {
                    _mm256_fmadd_ps(second, _mm256_set1_ps(totals[row]), sum)
                };
            }
        }
    }
    let factors: [__m256; VECTORS] = bytemuck::cast(*panel.factors);
    for (sum, factor) in sums.iter_mut().flat_map(|sums| sums.iter_mut().zip(factors)) {
        *sum = _mm256_mul_ps(*sum, factor);
    }
    out.copy_from_slice(bytemuck::cast_slice::<[__m256; VECTORS], f32>(&sums));
}

/// Returns sums of two products each of codes and a quad of a row, in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn products(codes: __m256i, quad: i32) -> __m256i {
    _mm256_maddubs_epi16(codes, _mm256_set1_epi32(quad))
}

/// Adds pairs of 16-bit sums to 32-bit sums.
#[inline]
#[target_feature(enable = "avx2")]
fn added(sums: __m256i, pairs: __m256i) -> __m256i {
    _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Returns the upper bits of the first and of the last four quads. The lowest bits belong to the first quad
/// of the four.
#[inline]
#[target_feature(enable = "avx2")]
fn upper<const BITS: usize>(record: &[[__m256i; VECTORS]], vector: usize) -> [__m256i; 2] {
    match BITS {
        5 => [record[4][vector], _mm256_srli_epi16::<4>(record[4][vector])],
        6 => [record[4][vector], record[5][vector]],
        _ => [_mm256_setzero_si256(); 2],
    }
}

/// Returns the codes of two quads, and moves `upper` on to the next ones.
#[inline]
#[target_feature(enable = "avx2")]
fn codes<const BITS: usize>(line: __m256i, upper: &mut [__m256i; 2]) -> [__m256i; 2] {
    let mut codes = [line, _mm256_srli_epi16::<4>(line)];
    for (codes, upper) in codes.iter_mut().zip(upper) {
        *codes = _mm256_and_si256(*codes, _mm256_set1_epi8(15));
        if BITS > 4 {
            let mask = _mm256_set1_epi8(if BITS == 5 { 0x10 } else { 0x30 });
            *codes = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16::<4>(*upper), mask), *codes);
            *upper = if BITS == 5 { _mm256_srli_epi16::<1>(*upper) } else { _mm256_srli_epi16::<2>(*upper) };
        }
    }
    codes
}

//! Matmul of codes with AVX-512 VNNI.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi16, _mm512_srli_epi16, _mm512_sub_epi8, _mm512_ternarylogic_epi32,
};

use super::{CodeBits, Panel, QUADS};
use crate::ahead::Ahead;
use crate::matmul::bytes::Tile;
#[cfg(target_os = "linux")]
use crate::matmul::q8_tiles::PanelTiles;
use crate::matmul::vnni::Vnni;

/// Maximum number of rows in a tile. Their sums, as f32 and as integers of both halves of a group, fill the
/// registers.
pub(super) const ROWS_MAX: usize = 8;

/// The truth table of `a & b | c`.
const AND_OR: i32 = 0b1110_1010;

/// `out` is `[rows, WIDTH]`.
pub(super) fn set_tile(_: Vnni, tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
    // SAFETY: a `Vnni` exists only if these instructions were detected.
    unsafe {
        match panel.bits {
            CodeBits::Four => set_tile_of::<4>(tile, panel, ahead, out),
            CodeBits::Five => set_tile_of::<5>(tile, panel, ahead, out),
            CodeBits::Six => set_tile_of::<6>(tile, panel, ahead, out),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn set_tile_of<const BITS: usize>(tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
    match tile.rows {
        1 => set_rows::<BITS, 1>(tile, panel, ahead, out),
        2 => set_rows::<BITS, 2>(tile, panel, ahead, out),
        3 => set_rows::<BITS, 3>(tile, panel, ahead, out),
        4 => set_rows::<BITS, 4>(tile, panel, ahead, out),
        5 => set_rows::<BITS, 5>(tile, panel, ahead, out),
        6 => set_rows::<BITS, 6>(tile, panel, ahead, out),
        7 => set_rows::<BITS, 7>(tile, panel, ahead, out),
        _ => set_rows::<BITS, ROWS_MAX>(tile, panel, ahead, out),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn set_rows<const BITS: usize, const M: usize>(
    tile: &Tile,
    panel: Panel<'_>,
    ahead: &mut Ahead<'_>,
    out: &mut [f32],
) {
    let records = bytemuck::cast_slice::<u8, __m512i>(panel.records).chunks_exact(BITS + 1);
    let quads = tile.quads.as_chunks::<M>().0.as_chunks::<QUADS>().0;
    let of_rows = tile.scales.as_chunks::<M>().0.iter().zip(tile.totals.as_chunks::<M>().0);
    let of_rows = of_rows.zip(tile.halves.as_chunks::<M>().0);
    let mut sums = [_mm512_setzero_ps(); M];
    for ((record, quads), ((scales, totals), halves)) in records.zip(quads).zip(of_rows) {
        ahead.step();
        let mut integers = [[_mm512_setzero_si512(); M]; 2];
        if BITS == 6 {
            for (row, halves) in halves.iter().enumerate() {
                integers[0][row] = _mm512_set1_epi32(-32 * halves[0]);
                integers[1][row] = _mm512_set1_epi32(-32 * halves[1]);
            }
        }
        let mut upper = upper::<BITS>(record);
        for line in 0..QUADS / 2 {
            for (half, codes) in codes::<BITS>(record[line], &mut upper).into_iter().enumerate() {
                let integers = &mut integers[if BITS == 6 { half } else { 0 }];
                for (integers, &quad) in integers.iter_mut().zip(&quads[half * QUADS / 2 + line]) {
                    *integers = _mm512_dpbusd_epi32(*integers, codes, _mm512_set1_epi32(quad));
                }
            }
        }
        let [first, second] = bytemuck::cast::<__m512i, [__m256i; 2]>(record[BITS]);
        let [first, second] = [_mm512_cvtph_ps(first), _mm512_cvtph_ps(second)];
        for (row, sum) in sums.iter_mut().enumerate() {
            let scale = _mm512_set1_ps(scales[row]);
            let low = _mm512_cvtepi32_ps(integers[0][row]);
            *sum = _mm512_fmadd_ps(low, _mm512_mul_ps(first, scale), *sum);
            if BITS == 6 {
                let high = _mm512_cvtepi32_ps(integers[1][row]);
                *sum = _mm512_fmadd_ps(high, _mm512_mul_ps(second, scale), *sum);
            } else {
                *sum = _mm512_fmadd_ps(second, _mm512_set1_ps(totals[row]), *sum);
            }
        }
    }
    let factors: __m512 = bytemuck::cast(*panel.factors);
    for sum in &mut sums {
        *sum = _mm512_mul_ps(*sum, factors);
    }
    out.copy_from_slice(bytemuck::cast_slice::<__m512, f32>(&sums));
}

/// Returns a panel for AMX tiles.
#[cfg(target_os = "linux")]
pub(super) fn tiles(_: Vnni, panel: Panel<'_>) -> PanelTiles<'_> {
    // SAFETY: a `Vnni` exists only if these instructions were detected.
    unsafe {
        match panel.bits {
            CodeBits::Four => unpacked::<4>(panel),
            CodeBits::Five => unpacked::<5>(panel),
            CodeBits::Six => unpacked::<6>(panel),
        }
    }
}

#[cfg(target_os = "linux")]
#[target_feature(enable = "avx512f,avx512bw")]
fn unpacked<const BITS: usize>(panel: Panel<'_>) -> PanelTiles<'_> {
    let records = bytemuck::cast_slice::<u8, __m512i>(panel.records).chunks_exact(BITS + 1);
    let mut integers = Vec::with_capacity(records.len() * QUADS);
    let mut params = Vec::with_capacity(records.len() * 2);
    for record in records {
        let mut quads = [_mm512_setzero_si512(); QUADS];
        let mut upper = upper::<BITS>(record);
        for line in 0..QUADS / 2 {
            [quads[line], quads[QUADS / 2 + line]] = codes::<BITS>(record[line], &mut upper);
        }
        if BITS == 6 {
            for quad in &mut quads {
                *quad = _mm512_sub_epi8(*quad, _mm512_set1_epi8(32));
            }
        }
        integers.extend(quads);
        params.extend(bytemuck::cast::<__m512i, [__m256i; 2]>(record[BITS]));
    }
    PanelTiles { integers, params: params.into(), factors: Some(panel.factors), next: panel.next }
}

/// Returns the upper bits of the first and of the last four quads. The lowest bits belong to the first quad
/// of the four.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn upper<const BITS: usize>(record: &[__m512i]) -> [__m512i; 2] {
    match BITS {
        5 => [record[4], _mm512_srli_epi16::<4>(record[4])],
        6 => [record[4], record[5]],
        _ => [_mm512_setzero_si512(); 2],
    }
}

/// Returns the codes of two quads, and moves `upper` on to the next ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn codes<const BITS: usize>(line: __m512i, upper: &mut [__m512i; 2]) -> [__m512i; 2] {
    let mut codes = [line, _mm512_srli_epi16::<4>(line)];
    for (codes, upper) in codes.iter_mut().zip(upper) {
        *codes = _mm512_and_si512(*codes, _mm512_set1_epi8(15));
        if BITS > 4 {
            let mask = _mm512_set1_epi8(if BITS == 5 { 0x10 } else { 0x30 });
            *codes = _mm512_ternarylogic_epi32::<AND_OR>(_mm512_slli_epi16::<4>(*upper), mask, *codes);
            *upper = if BITS == 5 { _mm512_srli_epi16::<1>(*upper) } else { _mm512_srli_epi16::<2>(*upper) };
        }
    }
    codes
}

//! Matmul of codes with `sdot` of ARM's NEON.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::aarch64::{
    float32x4_t, int8x16_t, uint8x16_t, uint16x4_t, vandq_u8, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32,
    vdupq_n_u8, vfmaq_f32, vfmaq_n_f32, vmulq_f32, vmulq_n_f32, vorrq_u8, vreinterpretq_s8_s32,
    vreinterpretq_s8_u8, vshlq_n_u8, vshrq_n_u8,
};

use super::{CodeBits, Panel, QUADS, WIDTH};
use crate::matmul::bytes::Tile;
use crate::matmul::sdot::{Sdot, dot, widen};

/// Number of vectors for the outputs of a panel.
const VECTORS: usize = WIDTH / 4;

/// `out` is `[rows, WIDTH]`.
pub(super) fn set_tile(_: Sdot, tile: &Tile, panel: Panel<'_>, out: &mut [f32]) {
    // SAFETY: an `Sdot` exists only if the instruction was detected.
    unsafe {
        match panel.bits {
            CodeBits::Four => set_tile_of::<4>(tile, panel, out),
            CodeBits::Five => set_tile_of::<5>(tile, panel, out),
            CodeBits::Six => set_tile_of::<6>(tile, panel, out),
        }
    }
}

#[target_feature(enable = "neon,dotprod")]
fn set_tile_of<const BITS: usize>(tile: &Tile, panel: Panel<'_>, out: &mut [f32]) {
    match tile.rows {
        1 => set_rows::<BITS, 1>(tile, panel, out),
        2 => set_rows::<BITS, 2>(tile, panel, out),
        3 => set_rows::<BITS, 3>(tile, panel, out),
        _ => set_rows::<BITS, 4>(tile, panel, out),
    }
}

#[target_feature(enable = "neon,dotprod")]
fn set_rows<const BITS: usize, const M: usize>(tile: &Tile, panel: Panel<'_>, out: &mut [f32]) {
    let records = bytemuck::cast_slice::<u8, [uint8x16_t; VECTORS]>(panel.records).chunks_exact(BITS + 1);
    let quads = tile.quads.as_chunks::<M>().0.as_chunks::<QUADS>().0;
    let of_rows = tile.scales.as_chunks::<M>().0.iter().zip(tile.totals.as_chunks::<M>().0);
    let of_rows = of_rows.zip(tile.halves.as_chunks::<M>().0);
    let mut sums = [[vdupq_n_f32(0.0); VECTORS]; M];
    for ((record, quads), ((scales, totals), halves)) in records.zip(quads).zip(of_rows) {
        let params = bytemuck::cast::<_, [[uint16x4_t; VECTORS]; 2]>(record[BITS]);
        for vector in 0..VECTORS {
            let mut integers = [[vdupq_n_s32(0); M]; 2];
            if BITS == 6 {
                for (row, halves) in halves.iter().enumerate() {
                    integers[0][row] = vdupq_n_s32(-32 * halves[0]);
                    integers[1][row] = vdupq_n_s32(-32 * halves[1]);
                }
            }
            let mut upper = upper::<BITS>(record, vector);
            for line in 0..QUADS / 2 {
                let codes = codes::<BITS>(record[line][vector], &mut upper);
                for (half, codes) in codes.into_iter().enumerate() {
                    let integers = &mut integers[if BITS == 6 { half } else { 0 }];
                    for (integers, &quad) in integers.iter_mut().zip(&quads[half * QUADS / 2 + line]) {
                        *integers = dot(*integers, codes, vreinterpretq_s8_s32(vdupq_n_s32(quad)));
                    }
                }
            }
            let [first, second] = params.map(|line| widen(line[vector]));
            for (row, sums) in sums.iter_mut().enumerate() {
                let low = vcvtq_f32_s32(integers[0][row]);
                let sum = vfmaq_f32(sums[vector], low, vmulq_n_f32(first, scales[row]));
                sums[vector] = if BITS == 6 {
                    vfmaq_f32(sum, vcvtq_f32_s32(integers[1][row]), vmulq_n_f32(second, scales[row]))
                } else {
                    vfmaq_n_f32(sum, second, totals[row])
                };
            }
        }
    }
    let factors: [float32x4_t; VECTORS] = bytemuck::cast(*panel.factors);
    for (sum, factor) in sums.iter_mut().flat_map(|sums| sums.iter_mut().zip(factors)) {
        *sum = vmulq_f32(*sum, factor);
    }
    out.copy_from_slice(bytemuck::cast_slice(&sums));
}

/// Returns the upper bits of the first and of the last four quads. The lowest bits belong to the first quad
/// of the four.
#[inline]
#[target_feature(enable = "neon")]
fn upper<const BITS: usize>(record: &[[uint8x16_t; VECTORS]], vector: usize) -> [uint8x16_t; 2] {
    match BITS {
        5 => [record[4][vector], vshrq_n_u8::<4>(record[4][vector])],
        6 => [record[4][vector], record[5][vector]],
        _ => [vdupq_n_u8(0); 2],
    }
}

/// Returns the codes of two quads, and moves `upper` on to the next ones.
#[inline]
#[target_feature(enable = "neon")]
fn codes<const BITS: usize>(line: uint8x16_t, upper: &mut [uint8x16_t; 2]) -> [int8x16_t; 2] {
    let mut codes = [vandq_u8(line, vdupq_n_u8(15)), vshrq_n_u8::<4>(line)];
    for (codes, upper) in codes.iter_mut().zip(upper) {
        if BITS > 4 {
            let mask = vdupq_n_u8(if BITS == 5 { 0x10 } else { 0x30 });
            *codes = vorrq_u8(vandq_u8(vshlq_n_u8::<4>(*upper), mask), *codes);
            *upper = if BITS == 5 { vshrq_n_u8::<1>(*upper) } else { vshrq_n_u8::<2>(*upper) };
        }
    }
    codes.map(|codes| vreinterpretq_s8_u8(codes))
}

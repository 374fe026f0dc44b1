//! int8 matmul with `sdot` of ARM's NEON: 16 multiplications per instruction, added up as 32-bit integers.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint16x4_t, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32, vfmaq_f32,
    vmulq_n_f32, vreinterpretq_s8_s32,
};
use std::arch::{asm, is_aarch64_feature_detected};

use super::bytes::{self, Tile};
use super::columns::Columns;
use super::quantized::{GROUP, Panel, QUAD, Quantized, WIDTH};
use crate::ahead::Ahead;

/// Number of vectors for the outputs of a panel.
const VECTORS: usize = WIDTH / 4;

/// Maximum number of rows in a tile. Their integer sums use half of the registers.
const ROWS_MAX: usize = 4;

/// Proof that this CPU has the instruction.
#[derive(Clone, Copy)]
pub(super) struct Sdot(());

impl Sdot {
    /// Name of this instruction in tests.
    #[cfg(test)]
    pub(super) const NAME: &str = "sdot";

    pub(super) fn new() -> Option<Self> {
        is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }

    /// Returns `[M, N]` for `x` `[M, K]`. Neither may be empty.
    pub(super) fn product<'a>(self, weight: &'a Quantized, x: &[f32]) -> Columns<'a> {
        bytes::product(weight, x, ROWS_MAX, move |tile, panel, ahead, out| {
            self.set_tile(tile, panel, ahead, out);
        })
    }

    fn set_tile(self, tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
        // SAFETY: `self` exists only if the instruction was detected.
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

#[target_feature(enable = "neon,dotprod")]
fn set_tile<const M: usize>(tile: &Tile, panel: Panel<'_>, ahead: &mut Ahead<'_>, out: &mut [f32]) {
    let (quads, _) = tile.quads.as_chunks::<M>();
    let scales = tile.scales.as_chunks::<M>().0;
    let starts = tile.starts.as_chunks::<M>().0;
    let weights = bytemuck::cast_slice::<u8, [int8x16_t; VECTORS]>(panel.values);
    let weight_scales = bytemuck::cast_slice::<_, [uint16x4_t; VECTORS]>(panel.scales);
    let mut sums = [[vdupq_n_f32(0.0); VECTORS]; M];
    let groups = weights.chunks_exact(GROUP / QUAD).zip(quads.chunks_exact(GROUP / QUAD));
    let of_group = weight_scales.iter().zip(scales.iter().zip(starts));
    for ((weights, quads), (weight_scales, (scales, starts))) in groups.zip(of_group) {
        ahead.step();
        let mut integers = [[vdupq_n_s32(0); VECTORS]; M];
        for (integers, &start) in integers.iter_mut().zip(starts) {
            *integers = [vdupq_n_s32(start); VECTORS];
        }
        for (weights, quads) in weights.iter().zip(quads) {
            for (integers, &quad) in integers.iter_mut().zip(quads) {
                let quad = vreinterpretq_s8_s32(vdupq_n_s32(quad));
                for (integers, &weights) in integers.iter_mut().zip(weights) {
                    *integers = dot(*integers, weights, quad);
                }
            }
        }
        let mut wide_scales = [vdupq_n_f32(0.0); VECTORS];
        for (wide, &scales) in wide_scales.iter_mut().zip(weight_scales) {
            *wide = widen(scales);
        }
        for ((sums, integers), &scale) in sums.iter_mut().zip(integers).zip(scales) {
            for ((sum, integers), weight_scales) in sums.iter_mut().zip(integers).zip(wide_scales) {
                *sum = vfmaq_f32(*sum, vcvtq_f32_s32(integers), vmulq_n_f32(weight_scales, scale));
            }
        }
    }
    out.copy_from_slice(bytemuck::cast_slice(&sums));
}

/// Adds the products of 4 bytes of `a` and of `b` to each of the 4 sums. The compiler's function for it is
/// unstable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut added = sums;
    // SAFETY: accesses registers only.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) added, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    added
}

/// Converts f16 numbers to f32. Every CPU has the instruction, but the compiler's function for it is
/// unstable.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn widen(values: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: accesses registers only.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) values,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

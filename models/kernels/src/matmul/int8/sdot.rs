//! int8 matmul with `sdot` of ARM's NEON, a few rows and part of a panel at a time.
#![expect(unsafe_code, reason = "functions with target features are called only if these were detected")]

use std::arch::aarch64::{
    int8x16_t, vcvtq_f32_s32, vdupq_n_s32, vmulq_f32, vmulq_n_f32, vreinterpretq_s8_s32,
};

use super::rows::Rows;
use super::{OFFSET, Panel, QUAD, WIDTH};
use crate::matmul::sdot::{Sdot, dot};
use crate::matmul::tiles::tile_sizes;

/// Maximum number of rows in a tile.
const ROWS_MAX: usize = 4;

/// Number of outputs in a register.
const LANES: usize = 4;

/// Number of registers for a panel's outputs.
const VECTORS: usize = WIDTH / LANES;

/// Mask that removes [`OFFSET`] from the integers of a quad.
const SIGNS: i32 = i32::from_ne_bytes([OFFSET as u8; QUAD]);

/// `out` is `[M, WIDTH]`.
pub(super) fn panel(_: Sdot, rows: &Rows, panel: Panel<'_>, out: &mut [f32]) {
    let mut first = 0;
    let mut rest = out;
    for count in tile_sizes(rows.len(), ROWS_MAX) {
        let (out, others) = rest.split_at_mut(count * WIDTH);
        // SAFETY: an `Sdot` exists only if the instruction was detected.
        unsafe {
            // The sums of a tile use at most half of the registers.
            match count {
                1 => set_rows::<1, VECTORS>(rows, first, panel, out),
                2 => set_rows::<2, { VECTORS / 2 }>(rows, first, panel, out),
                3 => set_rows::<3, { VECTORS / 4 }>(rows, first, panel, out),
                _ => set_rows::<ROWS_MAX, { VECTORS / 4 }>(rows, first, panel, out),
            }
        }
        (first, rest) = (first + count, others);
    }
}

/// Sets `out` `[M, WIDTH]` for rows starting at `first`, `V` registers of outputs at a time.
#[target_feature(enable = "neon,dotprod")]
fn set_rows<const M: usize, const V: usize>(rows: &Rows, first: usize, panel: Panel<'_>, out: &mut [f32]) {
    let weights = bytemuck::cast_slice::<i8, int8x16_t>(panel.values).as_chunks::<VECTORS>().0;
    let mut x = [[].as_slice(); M];
    for (row, x) in x.iter_mut().enumerate() {
        *x = &rows.quads(first + row)[..weights.len()];
    }
    for part in (0..VECTORS).step_by(V) {
        let mut sums = [[vdupq_n_s32(0); V]; M];
        for (quad, weights) in weights.iter().enumerate() {
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = vreinterpretq_s8_s32(vdupq_n_s32(x[quad] ^ SIGNS));
                for (sum, &weights) in sums.iter_mut().zip(&weights[part..part + V]) {
                    *sum = dot(*sum, weights, x);
                }
            }
        }
        // By value and as vectors: the compiler would keep sums in memory if they were read as a slice.
        let scales = &panel.scales.as_chunks::<LANES>().0[part..part + V];
        for (row, sums) in sums.into_iter().enumerate() {
            let out = &mut out.as_chunks_mut::<LANES>().0[row * VECTORS + part..][..V];
            for ((out, sum), &scales) in out.iter_mut().zip(sums).zip(scales) {
                let scaled = vmulq_f32(vcvtq_f32_s32(sum), bytemuck::cast(scales));
                *out = bytemuck::cast(vmulq_n_f32(scaled, rows.scale(first + row)));
            }
        }
    }
}

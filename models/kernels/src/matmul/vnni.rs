//! Products of bytes by AVX-512 VNNI: 64 multiplications an instruction, added up as 32-bit integers.
//!
//! Rows of `x` are rounded as the weights are, 32 numbers to a scale, so that products are exact integers within a group.
//! The instruction takes unsigned bytes on one side, so weights have [`OFFSET`] added; what that adds to a sum follows from
//! the row alone and is subtracted at its start.
#![expect(unsafe_code, reason = "functions with target features are called only where these were detected")]

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
};

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::columns::Columns;
use super::quantized::{GROUP, MAX, OFFSET, Panel, QUAD, Quantized, WIDTH, largest, nearest};
use super::tiles::{LAYOUT_MAX, tile_sizes};

/// Rows of a tile, whose sums as integers and as f32 fill the registers.
const ROWS_MAX: usize = 12;

/// Proof that this processor has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Vnni(());

impl Vnni {
    pub(super) fn new() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        found.then_some(Self(()))
    }

    /// `[M, N]` from `x` `[M, K]`; neither is empty.
    pub(super) fn product(self, weight: &Quantized, x: &[f32]) -> Columns {
        let tiles = Tile::all(x, weight.k);
        weight.by_panel(x.len() / weight.k, |panel, mut out| {
            let panel = weight.panel(panel);
            for tile in &tiles {
                let (these, rest) = out.split_at_mut(tile.rows * WIDTH);
                self.tile(tile, panel, these);
                out = rest;
            }
        })
    }

    fn tile(self, tile: &Tile, panel: Panel<'_>, out: &mut [f32]) {
        // SAFETY: `self` exists only where these instructions were found.
        unsafe {
            match tile.rows {
                1 => set_tile::<1>(tile, panel, out),
                2 => set_tile::<2>(tile, panel, out),
                3 => set_tile::<3>(tile, panel, out),
                4 => set_tile::<4>(tile, panel, out),
                5 => set_tile::<5>(tile, panel, out),
                6 => set_tile::<6>(tile, panel, out),
                7 => set_tile::<7>(tile, panel, out),
                8 => set_tile::<8>(tile, panel, out),
                9 => set_tile::<9>(tile, panel, out),
                10 => set_tile::<10>(tile, panel, out),
                11 => set_tile::<11>(tile, panel, out),
                _ => set_tile::<ROWS_MAX>(tile, panel, out),
            }
        }
    }
}

/// A few rows of `x`, rounded.
struct Tile {
    rows: usize,
    /// `[K / QUAD, rows]`: `QUAD` integers each.
    quads: Vec<i32>,
    /// `[K / GROUP, rows]`.
    scales: Vec<f32>,
    /// `[K / GROUP, rows]`: what [`OFFSET`] adds to the sums, negated.
    starts: Vec<i32>,
}

impl Tile {
    fn all(x: &[f32], k: usize) -> Vec<Self> {
        let mut rest = x;
        let cut = tile_sizes(x.len() / k, ROWS_MAX).map(|rows| {
            let (these, others) = rest.split_at(rows * k);
            rest = others;
            these
        });
        let (cut, arch): (Vec<&[f32]>, Arch) = (cut.collect(), Arch::new());
        let round = |rows: &[f32]| arch.dispatch(Round { rows, k });
        if x.len() <= LAYOUT_MAX {
            cut.into_iter().map(round).collect()
        } else {
            cut.into_par_iter().map(round).collect()
        }
    }
}

/// Rounds some rows `[rows, K]` to integers.
struct Round<'a> {
    rows: &'a [f32],
    k: usize,
}

impl WithSimd for Round<'_> {
    type Output = Tile;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Tile {
        let (rows, groups) = (self.rows.len() / self.k, self.k.div_ceil(GROUP));
        let quads = vec![0; groups * GROUP / QUAD * rows];
        let mut tile = Tile { rows, quads, scales: vec![0.0; groups * rows], starts: vec![0; groups * rows] };
        for (row, values) in self.rows.chunks_exact(self.k).enumerate() {
            for (group, values) in values.chunks(GROUP).enumerate() {
                let (integers, scale) = match values.as_array::<GROUP>() {
                    Some(values) => round(values),
                    None => round(&padded(values)),
                };
                let quads = tile.quads[group * GROUP / QUAD * rows + row..].iter_mut().step_by(rows);
                for (quad, integers) in quads.zip(integers.as_chunks::<QUAD>().0) {
                    *quad = i32::from_le_bytes(integers.map(i8::cast_unsigned));
                }
                tile.scales[group * rows + row] = scale;
                let sum: i32 = integers.iter().map(|&integer| i32::from(integer)).sum();
                tile.starts[group * rows + row] = -OFFSET * sum;
            }
        }
        tile
    }
}

/// The last inputs of a row, filled with zeros to a whole group.
fn padded(values: &[f32]) -> [f32; GROUP] {
    let mut padded = [0.0; GROUP];
    padded[..values.len()].copy_from_slice(values);
    padded
}

/// The nearest integers of a group, and their scale.
#[inline(always)]
fn round(values: &[f32; GROUP]) -> ([i8; GROUP], f32) {
    let largest = largest(values);
    let inverse = if largest > 0.0 { MAX / largest } else { 0.0 };
    let mut integers = [0; GROUP];
    for (integer, value) in integers.iter_mut().zip(values) {
        *integer = nearest(value * inverse);
    }
    (integers, largest * (1.0 / MAX))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn set_tile<const M: usize>(tile: &Tile, panel: Panel<'_>, out: &mut [f32]) {
    let (quads, _) = tile.quads.as_chunks::<M>();
    let (scales, starts) = (tile.scales.as_chunks::<M>().0, tile.starts.as_chunks::<M>().0);
    let weights = bytemuck::cast_slice::<u8, __m512i>(panel.values);
    let weight_scales = bytemuck::cast_slice::<_, __m256i>(panel.scales);
    let mut sums = [_mm512_setzero_ps(); M];
    let groups = weights.chunks_exact(GROUP / QUAD).zip(quads.chunks_exact(GROUP / QUAD));
    let of_group = weight_scales.iter().zip(scales.iter().zip(starts));
    for ((weights, quads), (&weight_scales, (scales, starts))) in groups.zip(of_group) {
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

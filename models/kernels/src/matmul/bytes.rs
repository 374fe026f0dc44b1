//! int8 matmul with groups of 32 inputs, for any instruction set.
//!
//! Rows of `x` are rounded like the weights, with one scale per 32 numbers, so that sums within a group are
//! exact integers. Each output adds up its groups in order with fused multiply-adds and additions. Results
//! are therefore bit-identical on every CPU with int8 instructions.

use pulp::{Arch, Simd, WithSimd};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::columns::Columns;
use super::quantized::{GROUP, MAX, OFFSET, QUAD, largest, nearest};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::quantized::{Panel, Quantized, WIDTH};
use super::tiles::by_tile;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::ahead::Ahead;

/// Returns `[M, N]` for `x` `[M, K]`, neither empty, using tiles of at most `rows_max` rows. `set_tile`
/// writes `[rows, WIDTH]`, and takes a step ahead with each group.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn product<'a>(
    weight: &'a Quantized,
    x: &[f32],
    rows_max: usize,
    set_tile: impl Fn(&Tile, Panel<'_>, &mut Ahead<'_>, &mut [f32]) + Sync + 'a,
) -> Columns<'a> {
    let tiles = tiles(x, weight.k, rows_max);
    weight.by_panel(x.len() / weight.k, move |panel, mut out| {
        let panel = weight.panel(panel);
        let mut ahead = Ahead::new(panel.next, tiles.len() * weight.groups());
        for tile in &tiles {
            let (these, rest) = out.split_at_mut(tile.rows * WIDTH);
            set_tile(tile, panel, &mut ahead, these);
            out = rest;
        }
    })
}

/// Rounds the rows of `x` `[M, K]`, in tiles of at most `rows_max` rows.
pub(super) fn tiles(x: &[f32], k: usize, rows_max: usize) -> Vec<Tile> {
    let arch = Arch::new();
    by_tile(x, k, rows_max, |rows| arch.dispatch(Round { rows, k }))
}

/// A few rounded rows of `x`.
pub(super) struct Tile {
    pub(super) rows: usize,
    /// `[K / QUAD, rows]`, with `QUAD` integers in each element.
    pub(super) quads: Vec<i32>,
    /// `[K / GROUP, rows]`.
    pub(super) scales: Vec<f32>,
    /// `[K / GROUP, rows]`: the negated contribution of [`OFFSET`] to the sums.
    pub(super) starts: Vec<i32>,
    /// `[K / GROUP, rows]`: the sums of both halves of a group's integers.
    pub(super) halves: Vec<[i32; 2]>,
    /// `[K / GROUP, rows]`: the sum of a group's integers times its scale.
    pub(super) totals: Vec<f32>,
}

/// Rounds rows `[rows, K]` to integers.
struct Round<'a> {
    rows: &'a [f32],
    k: usize,
}

impl WithSimd for Round<'_> {
    type Output = Tile;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Tile {
        let rows = self.rows.len() / self.k;
        let groups = self.k.div_ceil(GROUP);
        let mut tile = Tile {
            rows,
            quads: vec![0; groups * GROUP / QUAD * rows],
            scales: vec![0.0; groups * rows],
            starts: vec![0; groups * rows],
            halves: vec![[0; 2]; groups * rows],
            totals: vec![0.0; groups * rows],
        };
        for (row, values) in self.rows.chunks_exact(self.k).enumerate() {
            for (group, values) in values.chunks(GROUP).enumerate() {
                let (integers, scale) = round_group(values);
                let quads = tile.quads[group * GROUP / QUAD * rows + row..].iter_mut().step_by(rows);
                for (quad, integers) in quads.zip(integers.as_chunks::<QUAD>().0) {
                    *quad = i32::from_le_bytes(integers.map(i8::cast_unsigned));
                }
                let place = group * rows + row;
                let mut halves = [0; 2];
                for (half, integers) in halves.iter_mut().zip(integers.as_chunks::<{ GROUP / 2 }>().0) {
                    *half = integers.iter().map(|&integer| i32::from(integer)).sum();
                }
                let sum = halves[0] + halves[1];
                tile.scales[place] = scale;
                tile.starts[place] = -OFFSET * sum;
                tile.halves[place] = halves;
                tile.totals[place] = sum as f32 * scale;
            }
        }
        tile
    }
}

/// Returns the nearest integers of at most [`GROUP`] inputs, padded with zeros, and their scale.
#[inline(always)]
pub(super) fn round_group(values: &[f32]) -> ([i8; GROUP], f32) {
    match values.as_array::<GROUP>() {
        Some(values) => round(values),
        None => round(&padded(values)),
    }
}

/// Returns the last inputs of a row, padded with zeros to a complete group.
fn padded(values: &[f32]) -> [f32; GROUP] {
    let mut padded = [0.0; GROUP];
    padded[..values.len()].copy_from_slice(values);
    padded
}

/// Returns the nearest integers of a group, and their scale.
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

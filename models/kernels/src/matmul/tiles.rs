//! Rows of `x` in tiles of a few rows, with the elements of one input side by side.

use rayon::prelude::*;

use super::columns::SERIAL_MAX;
use super::panels::Aligned;

/// Below this many elements, a second thread for the layout of `x` costs more than it saves.
pub(super) const LAYOUT_MAX: usize = SERIAL_MAX / 16;

/// Returns the sizes of the tiles for `rows` rows: as few tiles as possible, of nearly equal size.
pub(super) fn tile_sizes(rows: usize, rows_max: usize) -> impl Iterator<Item = usize> {
    let count = rows.div_ceil(rows_max);
    (0..count).map(move |tile| (rows * (tile + 1)) / count - (rows * tile) / count)
}

/// Returns the results of `task` for the rows `[rows, K]` of each tile of `x` `[M, K]`.
pub(super) fn by_tile<T: Send>(
    x: &[f32],
    k: usize,
    rows_max: usize,
    task: impl Fn(&[f32]) -> T + Sync + Send,
) -> Vec<T> {
    let mut rest = x;
    let cut = tile_sizes(x.len() / k, rows_max).map(|rows| {
        let (these, others) = rest.split_at(rows * k);
        rest = others;
        these
    });
    let cut: Vec<&[f32]> = cut.collect();
    if x.len() <= LAYOUT_MAX {
        cut.into_iter().map(task).collect()
    } else {
        cut.into_par_iter().map(task).collect()
    }
}

/// `x` `[M, K]` as consecutive tiles `[K, rows]`.
pub(super) struct Tiles {
    values: Aligned<f32>,
    pub(super) k: usize,
    pub(super) m: usize,
    rows_max: usize,
}

impl Tiles {
    pub(super) fn new(x: &[f32], k: usize, rows_max: usize) -> Self {
        let m = x.len() / k;
        let mut values = Aligned::zeros(x.len());
        let mut place = values.as_mut_slice();
        let mut rest = x;
        let cut = tile_sizes(m, rows_max).map(|rows| {
            let (tile, places) = std::mem::take(&mut place).split_at_mut(rows * k);
            let (these, others) = rest.split_at(rows * k);
            (place, rest) = (places, others);
            (tile, these)
        });
        let cut: Vec<_> = cut.collect();
        if x.len() <= LAYOUT_MAX {
            cut.into_iter().for_each(|(tile, rows)| fill(tile, rows, k));
        } else {
            cut.into_par_iter().for_each(|(tile, rows)| fill(tile, rows, k));
        }
        Self { values, k, m, rows_max }
    }

    pub(super) fn count(&self) -> usize {
        self.m.div_ceil(self.rows_max)
    }

    /// Returns the tiles, each with its first row and its number of rows.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, usize, &[f32])> {
        let mut first = 0;
        tile_sizes(self.m, self.rows_max).map(move |rows| {
            let tile = &self.values.as_slice()[first * self.k..(first + rows) * self.k];
            let entry = (first, rows, tile);
            first += rows;
            entry
        })
    }
}

/// Copies rows `[rows, K]` to a tile `[K, rows]`.
fn fill(tile: &mut [f32], rows: &[f32], k: usize) {
    let count = tile.len() / k;
    for (row, values) in rows.chunks_exact(k).enumerate() {
        tile[row..].iter_mut().step_by(count).zip(values).for_each(|(place, value)| *place = *value);
    }
}

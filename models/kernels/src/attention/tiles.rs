//! Attention of a prompt's positions, in tiles of keys.
//!
//! In: a [`Task`] whose rows all see ranges of positions. A tile of one head's keys is transposed, and read by all
//! rows of the task. Each row keeps a maximum, a total and a weighted sum of values, and rescales them when a tile
//! has a larger score (the online softmax of Milakov and Gimelshein, arXiv 1805.02867).
//!
//! Invariant: tiles begin at multiples of [`TILE`] positions, and a row adds up its positions in order. Its result
//! depends neither on the other rows nor on how the prompt is divided among calls.

use std::ops::Range;

use pulp::Simd;

use super::{KvSlices, Task, Visible};
use crate::matmul::Float;
use crate::vector::{exp, sum};

/// Positions of a tile. Its keys and values (`D` = 64) fill the nearest cache.
const TILE: usize = 64;

/// Rows whose scores are computed together, and vectors of each of them: as many sums as an AVX2 core has registers
/// for.
const ROWS: usize = 4;
const VECTORS: usize = 2;

impl<E: Float> Task<'_, E> {
    /// Computes all heads, tile by tile.
    #[inline(always)]
    pub(super) fn by_tile<S: Simd>(&mut self, simd: S) {
        let ranges: Vec<Range<usize>> = self.queries.iter().map(|query| self.range(query)).collect();
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let own_end = self.queries.iter().map(|query| query.visible.count()).max().unwrap_or(0);
        let seen = self.listed(Visible::First(own_end));
        let sharing = self.heads.queries / self.heads.keys;
        let mut tile = Tile::new::<S>(self.dim());
        let mut heads: Vec<HeadSums> = Vec::new();
        for key_head in 0..self.heads.keys {
            let shared = key_head * sharing..(key_head + 1) * sharing;
            heads.clear();
            heads.extend(shared.map(|head| HeadSums::new(self, head, tile.value_width)));
            for from in (start / TILE * TILE..end).step_by(TILE) {
                let (_, key_lane) = self.lanes(key_head * sharing);
                tile.load(from, &seen[from..end.min(from + TILE)], key_lane);
                heads.iter_mut().for_each(|head| head.add(simd, &tile, self, &ranges));
            }
            heads.iter().for_each(|head| head.write(self));
        }
    }
}

/// Keys and values of one head at [`TILE`] positions, as f32. Positions without a key are zero.
struct Tile {
    /// Index of the first position.
    from: usize,
    /// `[D, TILE]`.
    keys: Vec<f32>,
    /// `[TILE, value_width]`.
    values: Vec<f32>,
    /// `D`, rounded up to whole vectors.
    value_width: usize,
    scratch: Vec<f32>,
}

impl Tile {
    fn new<S: Simd>(dim: usize) -> Self {
        let value_width = dim.next_multiple_of(S::F32_LANES);
        let keys = vec![0.0; dim * TILE];
        let values = vec![0.0; TILE * value_width];
        Self { from: 0, keys, values, value_width, scratch: vec![0.0; dim] }
    }

    #[inline(always)]
    fn load<E: Float>(&mut self, from: usize, seen: &[KvSlices<'_, E>], lane: Range<usize>) {
        self.from = from;
        for (column, kv) in seen.iter().enumerate() {
            let kv = kv.lanes(lane.clone());
            let keys = E::widen(kv.keys, &mut self.scratch);
            for (row, &key) in self.keys.chunks_exact_mut(TILE).zip(keys) {
                row[column] = key;
            }
            let values = E::widen(kv.values, &mut self.scratch);
            self.values[column * self.value_width..][..values.len()].copy_from_slice(values);
        }
    }
}

/// The softmax sums of one query head for all rows of a task, over the tiles so far.
struct HeadSums {
    head: usize,
    /// Scaled queries, `[R / ROWS, D]`. Rows that fill up the last block are zero.
    q: Vec<[f32; ROWS]>,
    largest: Vec<f32>,
    totals: Vec<f64>,
    /// Weighted sums of values, `[R, value_width]`.
    values: Vec<f32>,
    value_width: usize,
}

impl HeadSums {
    fn new<E: Float>(task: &Task<'_, E>, head: usize, value_width: usize) -> Self {
        let rows = task.queries.len();
        let dim = task.dim();
        let (lane, _) = task.lanes(head);
        let mut q = vec![[0.0; ROWS]; rows.div_ceil(ROWS) * dim];
        for (row, values) in task.q.chunks_exact(task.width).enumerate() {
            let block = &mut q[row / ROWS * dim..][..dim];
            for (packed, &value) in block.iter_mut().zip(&values[lane.clone()]) {
                packed[row % ROWS] = value * task.heads.scale;
            }
        }
        let largest = vec![f32::NEG_INFINITY; rows];
        let values = vec![0.0; rows * value_width];
        Self { head, q, largest, totals: vec![0.0; rows], values, value_width }
    }

    /// Adds the positions of a tile that each row sees.
    #[inline(always)]
    fn add<E: Float, S: Simd>(&mut self, simd: S, tile: &Tile, task: &Task<'_, E>, ranges: &[Range<usize>]) {
        let mut weights = [[0.0_f32; TILE]; ROWS];
        let dim = task.dim();
        for (block, ranges) in ranges.chunks(ROWS).enumerate() {
            let visible = |range: &Range<usize>| {
                range.start.max(tile.from) - tile.from
                    ..range.end.clamp(tile.from, tile.from + TILE) - tile.from
            };
            let mut columns = [const { 0..0 }; ROWS];
            columns.iter_mut().zip(ranges).for_each(|(columns, range)| *columns = visible(range));
            if columns.iter().all(Range::is_empty) {
                continue;
            }
            score(simd, &self.q[block * dim..][..dim], &tile.keys, &mut weights);
            for (index, columns) in columns.iter().enumerate().filter(|(_, columns)| !columns.is_empty()) {
                let row = block * ROWS + index;
                self.weigh(simd, row, &mut weights[index][columns.clone()], tile.from + columns.start, task);
            }
            let rows = &mut self.values[block * ROWS * self.value_width..];
            add_values(simd, rows, &tile.values, self.value_width, &weights, &columns[..ranges.len()]);
        }
    }

    /// Turns the scores of a row, from position `from` on, into weights, and rescales its sums to them.
    #[inline(always)]
    fn weigh<E: Float, S: Simd>(
        &mut self,
        simd: S,
        row: usize,
        scores: &mut [f32],
        from: usize,
        task: &Task<'_, E>,
    ) {
        task.cap_and_bias(scores, self.head, from, task.queries[row].position);
        let before = self.largest[row];
        let largest =
            scores.iter().fold(before, |largest, &score| if score > largest { score } else { largest });
        scores.iter_mut().for_each(|score| *score = exp(*score - largest));
        let total = sum(scores, |weight| weight);
        if largest > before {
            let scale = exp(before - largest);
            self.largest[row] = largest;
            self.totals[row] *= f64::from(scale);
            let values = &mut self.values[row * self.value_width..][..self.value_width];
            let scale = simd.splat_f32s(scale);
            for value in S::as_mut_simd_f32s(values).0 {
                *value = simd.mul_f32s(*value, scale);
            }
        }
        self.totals[row] += total;
    }

    fn write<E: Float>(&self, task: &mut Task<'_, E>) {
        let (lane, _) = task.lanes(self.head);
        let rows = self.values.chunks_exact(self.value_width).zip(&self.totals);
        for (out, (values, total)) in task.out.chunks_exact_mut(task.width).zip(rows) {
            let share = total.recip() as f32;
            out[lane.clone()].iter_mut().zip(values).for_each(|(out, value)| *out = value * share);
        }
    }
}

/// Computes `[ROWS, TILE]` scores of packed queries and transposed keys. Each is added up in the order of `D`.
#[inline(always)]
fn score<S: Simd>(simd: S, q: &[[f32; ROWS]], keys: &[f32], scores: &mut [[f32; TILE]; ROWS]) {
    let step = VECTORS * S::F32_LANES;
    for from in (0..TILE).step_by(step) {
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        for (q, keys) in q.iter().zip(keys.chunks_exact(TILE)) {
            let (keys, _) = S::as_simd_f32s(&keys[from..from + step]);
            let keys: [_; VECTORS] = std::array::from_fn(|vector| keys[vector]);
            for (sums, &q) in sums.iter_mut().zip(q) {
                let q = simd.splat_f32s(q);
                for (sum, &keys) in sums.iter_mut().zip(&keys) {
                    *sum = simd.mul_add_f32s(q, keys, *sum);
                }
            }
        }
        for (scores, sums) in scores.iter_mut().zip(&sums) {
            S::as_mut_simd_f32s(&mut scores[from..from + step]).0.copy_from_slice(sums);
        }
    }
}

/// Adds the weighted values of a tile to up to [`ROWS`] rows, each in the order of its columns.
#[inline(always)]
fn add_values<S: Simd>(
    simd: S,
    rows: &mut [f32],
    values: &[f32],
    width: usize,
    weights: &[[f32; TILE]; ROWS],
    columns: &[Range<usize>],
) {
    // All rows see these columns; a single one sees others before and after them.
    let start = columns.iter().map(|columns| columns.start).max().unwrap_or(0);
    let end = columns.iter().map(|columns| columns.end).min().unwrap_or(0);
    let together = columns.len() == ROWS && start < end;
    let alone = |row: usize, columns: Range<usize>, rows: &mut [f32]| {
        if !columns.is_empty() {
            add_rows::<S, 1>(simd, &mut rows[row * width..], values, width, [&weights[row]], columns);
        }
    };
    if !together {
        columns.iter().enumerate().for_each(|(row, columns)| alone(row, columns.clone(), rows));
        return;
    }
    columns.iter().enumerate().for_each(|(row, columns)| alone(row, columns.start..start, rows));
    add_rows::<S, ROWS>(simd, rows, values, width, std::array::from_fn(|row| &weights[row]), start..end);
    columns.iter().enumerate().for_each(|(row, columns)| alone(row, end..columns.end, rows));
}

/// Adds the weighted values of some columns to `R` rows.
#[inline(always)]
fn add_rows<S: Simd, const R: usize>(
    simd: S,
    rows: &mut [f32],
    values: &[f32],
    width: usize,
    weights: [&[f32; TILE]; R],
    columns: Range<usize>,
) {
    let lanes = S::F32_LANES;
    let mut from = 0;
    while from + VECTORS * lanes <= width {
        add_lanes::<S, R, VECTORS>(simd, rows, values, width, weights, columns.clone(), from);
        from += VECTORS * lanes;
    }
    while from < width {
        add_lanes::<S, R, 1>(simd, rows, values, width, weights, columns.clone(), from);
        from += lanes;
    }
}

/// Like [`add_rows`], for the `V` vectors that begin at `from`.
#[inline(always)]
fn add_lanes<S: Simd, const R: usize, const V: usize>(
    simd: S,
    rows: &mut [f32],
    values: &[f32],
    width: usize,
    weights: [&[f32; TILE]; R],
    columns: Range<usize>,
    from: usize,
) {
    let lanes = from..from + V * S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    for (sums, row) in sums.iter_mut().zip(rows.chunks_exact(width)) {
        sums.copy_from_slice(S::as_simd_f32s(&row[lanes.clone()]).0);
    }
    for column in columns {
        let (values, _) = S::as_simd_f32s(&values[column * width..][lanes.clone()]);
        let values: [_; V] = std::array::from_fn(|vector| values[vector]);
        for (sums, weights) in sums.iter_mut().zip(&weights) {
            let weight = simd.splat_f32s(weights[column]);
            for (sum, &value) in sums.iter_mut().zip(&values) {
                *sum = simd.mul_add_f32s(weight, value, *sum);
            }
        }
    }
    for (sums, row) in sums.iter().zip(rows.chunks_exact_mut(width)) {
        S::as_mut_simd_f32s(&mut row[lanes.clone()]).0.copy_from_slice(sums);
    }
}

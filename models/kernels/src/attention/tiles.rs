//! Attention of a prompt's positions, in tiles of keys.
//!
//! In: a [`Task`] whose rows all see ranges of positions. A row in one query head is a *lane* of vectors, and
//! a [`Panel`] is some vectors of lanes. The keys and values of a tile are gathered once for all lanes whose
//! query heads share them. Scores are `[positions, lanes]`, so that a softmax of many lanes needs no sums
//! across a vector. Each lane keeps a maximum, a total and a weighted sum of values, and rescales them when a
//! tile has a larger score (the online softmax of Milakov and Gimelshein, arXiv 1805.02867).
//!
//! Invariant: tiles begin at multiples of [`TILE`] positions, and a lane adds up its positions in order. Its
//! result depends neither on the other lanes nor on how the prompt is divided among calls.

use std::ops::Range;

use pulp::Simd;

use super::{DistanceBias, KvSlices, Task, Visible};
use crate::matmul::Float;
use crate::vector::{exp, soft_cap};

/// Positions of a tile. Its keys and values (`D` = 64), or the keys and scores, fill the nearest cache.
const TILE: usize = 64;

/// Number of positions, or of elements of a value, whose sums are computed together for all lanes of a panel.
const SUMS: usize = 4;

/// Returns the maximum number of vectors of a panel: [`SUMS`] sums of each fit the registers, with room for
/// operands.
const fn vectors_max<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 4 } else { 2 }
}

impl<E: Float> Task<'_, E> {
    /// Computes tile by tile.
    #[inline(always)]
    pub(super) fn by_tile<S: Simd>(&mut self, simd: S) {
        let ranges: Vec<Range<usize>> = self.queries.iter().map(|query| self.range(query)).collect();
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let own_end = self.queries.iter().map(|query| query.visible.count()).max().unwrap_or(0);
        let seen = self.listed(Visible::First(own_end));
        let mut tile = Tile::new(self.dim());
        let mut scores = vec![0.0; TILE * vectors_max::<S>() * S::F32_LANES];
        for key_head in self.key_heads.clone() {
            let mut panels = Panel::all::<E, S>(self, key_head, &ranges);
            for from in (start / TILE * TILE..end).step_by(TILE) {
                tile.load(from, &seen[from..end.min(from + TILE)], self.lane(key_head));
                for panel in &mut panels {
                    panel.add_tile(simd, &tile, self, &mut scores);
                }
            }
            panels.iter().for_each(|panel| panel.write(self));
        }
    }
}

/// Keys and values of one head at some positions, as f32.
struct Tile {
    positions: Range<usize>,
    /// `[TILE, D]`.
    keys: Vec<f32>,
    /// `[TILE, D]`.
    values: Vec<f32>,
    /// `D`.
    dim: usize,
    scratch: Vec<f32>,
}

impl Tile {
    fn new(dim: usize) -> Self {
        Self {
            positions: 0..0,
            keys: vec![0.0; TILE * dim],
            values: vec![0.0; TILE * dim],
            dim,
            scratch: vec![0.0; dim],
        }
    }

    #[inline(always)]
    fn load<E: Float>(&mut self, from: usize, seen: &[KvSlices<'_, E>], lane: Range<usize>) {
        self.positions = from..from + seen.len();
        let places = self.keys.chunks_exact_mut(self.dim).zip(self.values.chunks_exact_mut(self.dim));
        for ((keys, values), kv) in places.zip(seen) {
            let kv = kv.lanes(lane.clone());
            keys.copy_from_slice(E::widen(kv.keys, &mut self.scratch));
            values.copy_from_slice(E::widen(kv.values, &mut self.scratch));
        }
    }
}

/// Consecutive rows of a task in one query head.
struct Run {
    head: usize,
    rows: Range<usize>,
}

/// The softmax sums of some lanes over the tiles so far. `L` is the number of lanes, filled up to whole
/// vectors.
struct Panel {
    runs: Vec<Run>,
    /// Scaled queries, `[D, L]`.
    queries: Vec<f32>,
    /// The first position that a lane sees, and the end of these positions.
    starts: Vec<u32>,
    ends: Vec<u32>,
    largest: Vec<f32>,
    totals: Vec<f64>,
    /// Weighted sums of values, `[D, L]`.
    sums: Vec<f32>,
    /// Positions that some lane sees.
    seen: Range<usize>,
    /// Positions that all lanes see.
    common: Range<usize>,
}

impl Panel {
    /// Returns the panels of all query heads that share a key head.
    #[inline(always)]
    fn all<E: Float, S: Simd>(task: &Task<'_, E>, key_head: usize, ranges: &[Range<usize>]) -> Vec<Self> {
        let width = vectors_max::<S>() * S::F32_LANES;
        let rows = ranges.len();
        let sharing = task.sharing();
        let first = key_head * sharing;
        let mut panels = Vec::with_capacity((sharing * rows).div_ceil(width));
        for from in (0..sharing * rows).step_by(width) {
            let lanes = from..(from + width).min(sharing * rows);
            let runs = (lanes.start / rows..=(lanes.end - 1) / rows).map(|head| Run {
                head: first + head,
                rows: lanes.start.max(head * rows) - head * rows
                    ..lanes.end.min((head + 1) * rows) - head * rows,
            });
            panels.push(Self::new::<E, S>(task, runs.collect(), ranges));
        }
        panels
    }

    #[inline(always)]
    fn new<E: Float, S: Simd>(task: &Task<'_, E>, runs: Vec<Run>, ranges: &[Range<usize>]) -> Self {
        let dim = task.dim();
        let count: usize = runs.iter().map(|run| run.rows.len()).sum();
        let width = count.next_multiple_of(S::F32_LANES);
        let mut queries = vec![0.0; dim * width];
        // Lanes that fill up the last vector see everything, so that they hide nothing.
        let (mut starts, mut ends) = (vec![0; width], vec![u32::MAX; width]);
        let (mut seen, mut common) = (Range { start: usize::MAX, end: 0 }, 0..usize::MAX);
        let lanes = runs.iter().flat_map(|run| run.rows.clone().map(|row| (run.head, row)));
        for (lane, (head, row)) in lanes.enumerate() {
            let query = &task.q[row * task.width..][task.lane(head)];
            for (packed, value) in queries[lane..].iter_mut().step_by(width).zip(query) {
                *packed = value * task.heads.scale;
            }
            let Range { start, end } = ranges[row];
            (starts[lane], ends[lane]) = (start as u32, end as u32);
            seen = seen.start.min(start)..seen.end.max(end);
            common = common.start.max(start)..common.end.min(end);
        }
        Self {
            runs,
            queries,
            starts,
            ends,
            // Less than any score. Minus infinity minus itself is not a number.
            largest: vec![f32::MIN; width],
            totals: vec![0.0; width],
            sums: vec![0.0; dim * width],
            seen,
            common,
        }
    }

    /// Adds the positions of a tile that each lane sees.
    #[inline(always)]
    fn add_tile<E: Float, S: Simd>(&mut self, simd: S, tile: &Tile, task: &Task<'_, E>, scores: &mut [f32]) {
        let positions = tile.positions.start..tile.positions.end.min(self.seen.end);
        if positions.is_empty() || positions.end <= self.seen.start {
            return;
        }
        match self.starts.len() / S::F32_LANES {
            1 => self.add::<E, S, 1>(simd, tile, positions, task, scores),
            2 => self.add::<E, S, 2>(simd, tile, positions, task, scores),
            3 => self.add::<E, S, 3>(simd, tile, positions, task, scores),
            _ => self.add::<E, S, 4>(simd, tile, positions, task, scores),
        }
    }

    /// Adds the first positions of a tile to a panel of `V` vectors.
    #[inline(always)]
    fn add<E: Float, S: Simd, const V: usize>(
        &mut self,
        simd: S,
        tile: &Tile,
        positions: Range<usize>,
        task: &Task<'_, E>,
        scores: &mut [f32],
    ) {
        let width = V * S::F32_LANES;
        let scores = &mut scores[..positions.len() * width];
        let keys = &tile.keys[..positions.len() * tile.dim];
        score::<S, V>(simd, keys, vectors::<S, V>(&self.queries), vectors_mut::<S, V>(scores));
        if let Some(cap) = task.heads.cap {
            soft_cap(simd, scores, cap);
        }
        if let Some(bias) = task.bias {
            self.add_bias(scores, positions.clone(), bias, task);
        }
        let hides = positions.start < self.common.start || positions.end > self.common.end;
        let visible = LaneRanges::<S, V>::new(positions.start, &self.starts, &self.ends);
        if hides {
            let hidden = simd.splat_f32s(f32::NEG_INFINITY);
            for (index, scores) in vectors_mut::<S, V>(scores).iter_mut().enumerate() {
                *scores = visible.select(simd, index, *scores, [hidden; V]);
            }
        }
        let scales = self.weigh::<S, V>(simd, scores);
        let weights = vectors::<S, V>(scores);
        let values = &tile.values[..positions.len() * tile.dim];
        let sums = vectors_mut::<S, V>(&mut self.sums);
        if hides {
            add_values::<S, V, true>(simd, values, weights, scales, sums, &visible);
        } else {
            add_values::<S, V, false>(simd, values, weights, scales, sums, &visible);
        }
    }

    /// Turns scores `[positions, L]` into weights, and returns the factor that rescales the earlier sums to
    /// them.
    #[inline(always)]
    fn weigh<S: Simd, const V: usize>(&mut self, simd: S, scores: &mut [f32]) -> [S::f32s; V] {
        let before = vectors::<S, V>(&self.largest)[0];
        let mut largest = before;
        for scores in vectors::<S, V>(scores) {
            for (largest, &score) in largest.iter_mut().zip(scores) {
                *largest = simd.max_f32s(*largest, score);
            }
        }
        vectors_mut::<S, V>(&mut self.largest)[0] = largest;
        let mut scales = before;
        for (scale, &largest) in scales.iter_mut().zip(&largest) {
            *scale = exp(simd, simd.sub_f32s(*scale, largest));
        }
        // Side by side, so that none of them is a sum of many terms.
        let mut totals = [[simd.splat_f32s(0.0); V]; SUMS];
        for scores in vectors_mut::<S, V>(scores).chunks_mut(SUMS) {
            for (totals, scores) in totals.iter_mut().zip(scores) {
                for ((total, score), &largest) in totals.iter_mut().zip(scores).zip(&largest) {
                    *score = exp(simd, simd.sub_f32s(*score, largest));
                    *total = simd.add_f32s(*total, *score);
                }
            }
        }
        let [a, b, c, d] = totals;
        for vector in 0..V {
            let total =
                simd.add_f32s(simd.add_f32s(a[vector], b[vector]), simd.add_f32s(c[vector], d[vector]));
            let new = bytemuck::cast_slice::<_, f32>(std::slice::from_ref(&total));
            let scale = bytemuck::cast_slice::<_, f32>(std::slice::from_ref(&scales[vector]));
            let totals = &mut self.totals[vector * S::F32_LANES..][..S::F32_LANES];
            for ((total, &new), &scale) in totals.iter_mut().zip(new).zip(scale) {
                *total = *total * f64::from(scale) + f64::from(new);
            }
        }
        scales
    }

    /// Adds biases to the scores of some positions.
    #[inline(always)]
    fn add_bias<E: Float>(
        &self,
        scores: &mut [f32],
        positions: Range<usize>,
        bias: &DistanceBias,
        task: &Task<'_, E>,
    ) {
        let mut from = 0;
        for Run { head, rows } in &self.runs {
            // Rows have consecutive positions, so the biases of the next key are the same, one row further.
            let first = task.queries[rows.start].position;
            let last = positions.end - 1;
            let values = &bias.values()[*head];
            let biases =
                (0..rows.len() + positions.len() - 1).map(|row| values[bias.index(last, first + row)]);
            let biases: Vec<f32> = biases.collect();
            let lanes = from..from + rows.len();
            for (index, scores) in scores.chunks_exact_mut(self.starts.len()).enumerate() {
                let biases = &biases[positions.len() - 1 - index..];
                scores[lanes.clone()].iter_mut().zip(biases).for_each(|(score, bias)| *score += bias);
            }
            from = lanes.end;
        }
    }

    fn write<E: Float>(&self, task: &mut Task<'_, E>) {
        let width = self.starts.len();
        let lanes = self.runs.iter().flat_map(|run| run.rows.clone().map(|row| (run.head, row)));
        for (lane, (head, row)) in lanes.enumerate() {
            let place = task.place(head);
            let share = self.totals[lane].recip() as f32;
            let sums = self.sums[lane..].iter().step_by(width);
            let out = &mut task.out[row][place];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * share);
        }
    }
}

/// The ranges of positions that the lanes of a panel see.
struct LaneRanges<S: Simd, const V: usize> {
    /// The position with index 0.
    first: usize,
    starts: [S::u32s; V],
    ends: [S::u32s; V],
}

impl<S: Simd, const V: usize> LaneRanges<S, V> {
    #[inline(always)]
    fn new(first: usize, starts: &[u32], ends: &[u32]) -> Self {
        let [starts, ends] = [starts, ends].map(|limits| S::as_simd_u32s(limits).0.as_chunks().0[0]);
        Self { first, starts, ends }
    }

    /// Returns `new` in the lanes that see a position, and `old` in the others.
    #[inline(always)]
    fn select(&self, simd: S, index: usize, new: [S::f32s; V], old: [S::f32s; V]) -> [S::f32s; V] {
        let position = simd.splat_u32s((self.first + index) as u32);
        let mut selected = old;
        for (vector, (selected, new)) in selected.iter_mut().zip(new).enumerate() {
            let begun = simd.less_than_or_equal_u32s(self.starts[vector], position);
            let visible = simd.and_m32s(begun, simd.less_than_u32s(position, self.ends[vector]));
            *selected = simd.select_f32s(visible, new, *selected);
        }
        selected
    }
}

#[inline(always)]
fn vectors<S: Simd, const V: usize>(values: &[f32]) -> &[[S::f32s; V]] {
    S::as_simd_f32s(values).0.as_chunks().0
}

#[inline(always)]
fn vectors_mut<S: Simd, const V: usize>(values: &mut [f32]) -> &mut [[S::f32s; V]] {
    S::as_mut_simd_f32s(values).0.as_chunks_mut().0
}

/// Computes the scores `[positions, L]` of keys `[positions, D]` and queries `[D, L]`, each in the order of
/// `D`.
#[inline(always)]
fn score<S: Simd, const V: usize>(
    simd: S,
    keys: &[f32],
    queries: &[[S::f32s; V]],
    scores: &mut [[S::f32s; V]],
) {
    let dim = queries.len();
    let (blocks, rest) = scores.as_chunks_mut::<SUMS>();
    let (keys, keys_left) = keys.split_at(blocks.len() * SUMS * dim);
    for (keys, scores) in keys.chunks_exact(SUMS * dim).zip(blocks) {
        *scores = dots::<S, V, SUMS>(simd, keys, queries);
    }
    for (key, score) in keys_left.chunks_exact(dim).zip(rest) {
        [*score] = dots::<S, V, 1>(simd, key, queries);
    }
}

/// Returns the scores of `C` keys.
#[inline(always)]
fn dots<S: Simd, const V: usize, const C: usize>(
    simd: S,
    keys: &[f32],
    queries: &[[S::f32s; V]],
) -> [[S::f32s; V]; C] {
    let keys: [&[f32]; C] = std::array::from_fn(|key| &keys[key * queries.len()..][..queries.len()]);
    let mut sums = [[simd.splat_f32s(0.0); V]; C];
    for (element, queries) in queries.iter().enumerate() {
        for (sums, key) in sums.iter_mut().zip(keys) {
            let key = simd.splat_f32s(key[element]);
            for (sum, &query) in sums.iter_mut().zip(queries) {
                *sum = simd.mul_add_f32s(key, query, *sum);
            }
        }
    }
    sums
}

/// Adds values `[positions, D]` with weights `[positions, L]` to the rescaled sums `[D, L]`, each in the
/// order of positions.
#[inline(always)]
fn add_values<S: Simd, const V: usize, const HIDES: bool>(
    simd: S,
    values: &[f32],
    weights: &[[S::f32s; V]],
    scales: [S::f32s; V],
    sums: &mut [[S::f32s; V]],
    visible: &LaneRanges<S, V>,
) {
    let dim = sums.len();
    let (blocks, rest) = sums.as_chunks_mut::<SUMS>();
    let rest_from = blocks.len() * SUMS;
    for (block, sums) in blocks.iter_mut().enumerate() {
        add_elements::<S, V, _, HIDES>(simd, &values[block * SUMS..], dim, weights, scales, sums, visible);
    }
    for (index, sum) in rest.iter_mut().enumerate() {
        add_elements::<S, V, _, HIDES>(
            simd,
            &values[rest_from + index..],
            dim,
            weights,
            scales,
            std::array::from_mut(sum),
            visible,
        );
    }
}

/// Adds `C` elements of values that are `dim` elements apart.
#[inline(always)]
fn add_elements<S: Simd, const V: usize, const C: usize, const HIDES: bool>(
    simd: S,
    values: &[f32],
    dim: usize,
    weights: &[[S::f32s; V]],
    scales: [S::f32s; V],
    sums: &mut [[S::f32s; V]; C],
    visible: &LaneRanges<S, V>,
) {
    let mut added = *sums;
    for added in &mut added {
        for (added, &scale) in added.iter_mut().zip(&scales) {
            *added = simd.mul_f32s(*added, scale);
        }
    }
    for (index, weights) in weights.iter().enumerate() {
        let values = &values[index * dim..][..C];
        for (added, &value) in added.iter_mut().zip(values) {
            let value = simd.splat_f32s(value);
            let before = *added;
            for (added, &weight) in added.iter_mut().zip(weights) {
                *added = simd.mul_add_f32s(value, weight, *added);
            }
            if HIDES {
                *added = visible.select(simd, index, *added, before);
            }
        }
    }
    *sums = added;
}

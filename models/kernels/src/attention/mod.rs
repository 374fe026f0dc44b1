//! Softmax attention over plain slices.
//!
//! Rows that share keys form an [`AttentionGroup`]. The positions of a prompt are computed in [`tiles`]. Many
//! decoded rows are computed head by head; the keys and values of a head are gathered into the nearest cache.
//! A few decoded rows read keys and values only about once, so they read them in memory order: a few
//! positions at a time, for all heads. The result of a decoded row is bit-identical either way. 16-bit keys
//! and values are widened when they are read; sums are f32.
//!
//! Axes: `R` rows, `H` query heads, `G` key heads, `D` width of a head, `N` positions.

mod tiles;

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::ahead::request;
use crate::matmul::Float;
use crate::vector::{add_weighted, dots, soft_cap, softmax};

/// Below this many multiplications, a second thread costs more than it saves.
const SERIAL_MAX: usize = 1 << 19;

/// Maximum number of decoded rows that one task processes. Keys and values are gathered once for all of them.
const ROWS_MAX: usize = 32;

/// Minimum number of a prompt's rows that one task processes, and maximum number of their query heads that
/// share a key head. A tile of keys and values is gathered once for all of them.
const PROMPT_ROWS_MIN: usize = 16;
const PROMPT_LANES_MAX: usize = 192;

/// Minimum number of rows for which keys and values are gathered head by head.
const GATHERED_MIN: usize = 4;

/// With at least this many tasks per thread, threads share them evenly enough without dividing them.
const EVEN_MIN: usize = 4;

/// Number of positions that are read at a time without gathering: as many streams as a CPU can prefetch.
const POSITIONS: usize = 8;

/// How the width of queries, keys and values is divided into heads.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// Number of query heads, a multiple of `keys`.
    pub queries: usize,
    /// Number of key and value heads. Each serves the same number of consecutive query heads.
    pub keys: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Scaled scores `s` become `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
}

impl Heads {
    /// Gives each query head its own keys, without scaling scores (T5 folds scaling into its weights).
    pub const fn unscaled(count: usize) -> Self {
        Self { queries: count, keys: count, scale: 1.0, cap: None }
    }
}

/// The positions that a row attends to.
#[derive(Debug, Clone, Copy)]
pub enum Visible<'a> {
    /// The first positions, this many.
    First(usize),
    /// These positions, in the order of a path: ancestors from the root down to the row itself.
    Nodes(&'a [u32]),
}

impl Visible<'_> {
    #[inline]
    pub fn count(self) -> usize {
        match self {
            Self::First(count) => count,
            Self::Nodes(nodes) => nodes.len(),
        }
    }

    /// Returns the index at which the visible position `index` is stored.
    #[inline]
    pub fn at(self, index: usize) -> usize {
        match self {
            Self::First(_) => index,
            Self::Nodes(nodes) => nodes[index] as usize,
        }
    }

    /// Returns one more than the greatest stored position that is visible.
    pub fn end(self) -> usize {
        match self {
            Self::First(count) => count,
            Self::Nodes(nodes) => nodes.iter().max().map_or(0, |&last| last as usize + 1),
        }
    }
}

/// The positions of its [`AttentionGroup`] that one query row sees.
#[derive(Debug, Clone, Copy)]
pub struct AttentionQuery<'a> {
    /// The group's own positions that the row sees. It sees all positions before them.
    pub visible: Visible<'a>,
    /// Number of these positions, counted from the first, that are outside the row's window. At least one is
    /// inside.
    pub hidden: usize,
    /// The row's own position, for the relative bias.
    pub position: usize,
}

/// Keys and values, both `[N, G * D]`.
#[derive(Debug, Clone, Copy)]
pub struct KvSlices<'a, E = f32> {
    pub keys: &'a [E],
    pub values: &'a [E],
}

/// Rows that share keys and values.
#[derive(Debug)]
pub struct AttentionGroup<'a, E = f32> {
    /// Positions before the group's own.
    pub before: Vec<KvSlices<'a, E>>,
    pub own: KvSlices<'a, E>,
    pub queries: Vec<AttentionQuery<'a>>,
    pub phase: Phase,
}

/// The kind of a group's rows. It selects the order of additions, so a row must always have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Consecutive positions of a prompt. Each sees the first positions ([`Visible::First`]).
    Prefill,
    Decode,
}

/// A bias that each head adds to a score by the distance between key and query. It is constant beyond
/// `reach`.
#[derive(Debug, Clone)]
pub struct DistanceBias {
    /// For each head, `2 * reach + 1` values for the distances `-reach..=reach`.
    values: Vec<Vec<f32>>,
    reach: usize,
}

impl DistanceBias {
    /// Creates the bias. `bias(head, key position - query position)` must be constant beyond `reach` on
    /// either side.
    pub fn new(heads: usize, reach: usize, bias: impl Fn(usize, i64) -> f32) -> Self {
        let span = reach as i64;
        let values =
            (0..heads).map(|head| (-span..=span).map(|distance| bias(head, distance)).collect()).collect();
        Self { values, reach }
    }

    /// Returns, for each head, one value per distance, starting with the most negative distance.
    pub fn values(&self) -> &[Vec<f32>] {
        &self.values
    }

    /// Returns the index of the value for this pair of positions.
    pub fn index(&self, key: usize, query: usize) -> usize {
        (key + self.reach).saturating_sub(query).min(2 * self.reach)
    }

    /// Adds the biases of consecutive keys, the first at position `from`, to their scores.
    fn add(&self, scores: &mut [f32], head: usize, from: usize, query: usize) {
        for (index, score) in scores.iter_mut().enumerate() {
            *score += self.values[head][self.index(from + index, query)];
        }
    }
}

/// Computes softmax attention of `q` `[R, H * D]`, the rows of all groups in order. Returns `[R, H * D]`.
pub fn attend<E: Float>(
    q: &[f32],
    groups: &[AttentionGroup<'_, E>],
    heads: Heads,
    bias: Option<&DistanceBias>,
) -> Vec<f32> {
    let mut out = vec![0.0; q.len()];
    let rows: usize = groups.iter().map(|group| group.queries.len()).sum();
    let width = q.len() / rows.max(1);
    let mut tasks = Vec::new();
    let mut q_left = q;
    let mut out_left = out.as_mut_slice();
    for group in groups {
        let rows_max = match group.phase {
            Phase::Prefill => prompt_rows(rows, heads),
            Phase::Decode => decoded_rows(rows, heads),
        };
        for queries in group.queries.chunks(rows_max) {
            let (q, q_rest) = q_left.split_at(queries.len() * width);
            let (out, out_rest) = std::mem::take(&mut out_left).split_at_mut(queries.len() * width);
            (q_left, out_left) = (q_rest, out_rest);
            let out = out.chunks_exact_mut(width).collect();
            let AttentionGroup { before, own, phase, .. } = group;
            let key_heads = 0..heads.keys;
            tasks.push(Task {
                q,
                before,
                own: *own,
                queries,
                phase: *phase,
                width,
                heads,
                key_heads,
                bias,
                out,
            });
        }
    }
    let work: usize = tasks.iter().map(|task| 2 * task.seen_max() * task.q.len()).sum();
    let arch = Arch::new();
    if work <= SERIAL_MAX {
        tasks.into_iter().for_each(|task| arch.dispatch(task));
    } else {
        let threads = rayon::current_num_threads();
        let parts = if tasks.len() < EVEN_MIN * threads { threads } else { 1 };
        let tasks: Vec<_> = tasks.into_iter().flat_map(|task| task.divided(parts)).collect();
        tasks.into_par_iter().for_each(|task| arch.dispatch(task));
    }
    out
}

/// Returns the maximum number of decoded rows per task. If the heads cannot be divided evenly among threads,
/// the rows are.
fn decoded_rows(rows: usize, heads: Heads) -> usize {
    let threads = rayon::current_num_threads();
    if heads.keys.is_multiple_of(threads) {
        return ROWS_MAX;
    }
    rows.div_ceil(threads).clamp(GATHERED_MIN, ROWS_MAX)
}

/// Returns the number of a prompt's rows per task: as few tasks as possible, and as many for each thread.
fn prompt_rows(rows: usize, heads: Heads) -> usize {
    let threads = rayon::current_num_threads();
    let rows_max = PROMPT_LANES_MAX / (heads.queries / heads.keys);
    let tasks = rows.div_ceil(rows_max.max(PROMPT_ROWS_MIN)).next_multiple_of(threads);
    rows.div_ceil(tasks).max(PROMPT_ROWS_MIN)
}

/// Some heads of some rows with the same keys.
struct Task<'a, E> {
    /// `[rows, width]`.
    q: &'a [f32],
    before: &'a [KvSlices<'a, E>],
    own: KvSlices<'a, E>,
    queries: &'a [AttentionQuery<'a>],
    phase: Phase,
    /// `H * D`.
    width: usize,
    heads: Heads,
    /// The key heads that it computes, with all query heads that share them.
    key_heads: Range<usize>,
    bias: Option<&'a DistanceBias>,
    /// For each row, the lanes of its query heads.
    out: Vec<&'a mut [f32]>,
}

impl<E: Float> WithSimd for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        if self.phase == Phase::Prefill {
            self.by_tile(simd);
        } else if self.queries.len() >= GATHERED_MIN {
            self.by_head(simd);
        } else {
            // A closure might be compiled as a function without the vectors of `simd`.
            for index in 0..self.queries.len() {
                self.by_position(simd, index);
            }
        }
    }
}

impl<'a, E: Float> Task<'a, E> {
    /// Divides its heads among up to `count` tasks.
    fn divided(self, count: usize) -> Vec<Self> {
        let share = self.key_heads.len().div_ceil(count).max(1);
        let lanes = share * self.sharing() * self.dim();
        let mut rows: Vec<_> = self.out.into_iter().map(|row| row.chunks_mut(lanes)).collect();
        let mut parts = Vec::with_capacity(count);
        for first in self.key_heads.clone().step_by(share) {
            parts.push(Self {
                key_heads: first..self.key_heads.end.min(first + share),
                out: rows.iter_mut().filter_map(Iterator::next).collect(),
                ..self
            });
        }
        parts
    }

    /// Returns the number of query heads that share a key head.
    fn sharing(&self) -> usize {
        self.heads.queries / self.heads.keys
    }

    /// Returns the query heads that it computes.
    fn query_heads(&self) -> Range<usize> {
        self.key_heads.start * self.sharing()..self.key_heads.end * self.sharing()
    }

    /// Returns the elements of the key heads that it reads, within a position.
    fn key_lanes(&self) -> Range<usize> {
        self.key_heads.start * self.dim()..self.key_heads.end * self.dim()
    }

    /// Returns the range of a query head within the output of a row.
    fn place(&self, head: usize) -> Range<usize> {
        self.lane(head - self.query_heads().start)
    }

    /// Requests the keys or values of the next positions from memory, once for each key head.
    #[inline(always)]
    fn request(&self, head: usize, next: impl Iterator<Item = &'a [E]>) {
        if head.is_multiple_of(self.sharing()) {
            let lane = self.lane(head / self.sharing());
            next.for_each(|position| request(&position[lane.clone()]));
        }
    }

    /// Returns the range of a query head's key within the elements that it reads.
    fn key_place(&self, head: usize) -> Range<usize> {
        self.lane(head / self.sharing() - self.key_heads.start)
    }

    /// `D`.
    fn dim(&self) -> usize {
        self.width / self.heads.queries
    }

    /// `G * D`.
    fn key_width(&self) -> usize {
        self.dim() * self.heads.keys
    }

    /// Returns the range of a query head within its row, and the range of its key within a position.
    fn lanes(&self, head: usize) -> (Range<usize>, Range<usize>) {
        (self.lane(head), self.lane(head / self.sharing()))
    }

    /// Returns the range of a head: of a query head within its row, or of a key head within a position.
    fn lane(&self, head: usize) -> Range<usize> {
        let dim = self.dim();
        head * dim..(head + 1) * dim
    }

    /// Returns the maximum number of positions that a row sees, including hidden ones.
    fn seen_max(&self) -> usize {
        let own = self.queries.iter().map(|query| query.visible.count()).max();
        self.before_len() + own.unwrap_or(0)
    }

    /// Returns the positions that a row sees.
    fn range(&self, query: &AttentionQuery<'_>) -> Range<usize> {
        query.hidden..self.before_len() + query.visible.count()
    }

    /// Returns the key and value, each `[G * D]`, of every position that a row sees or that is hidden from
    /// it, in order.
    fn listed(&self, visible: Visible<'_>) -> Vec<KvSlices<'a, E>> {
        let width = self.key_width();
        let mut seen = Vec::with_capacity(self.seen_max());
        for before in self.before {
            let pairs = before.keys.chunks_exact(width).zip(before.values.chunks_exact(width));
            seen.extend(pairs.map(|(keys, values)| KvSlices { keys, values }));
        }
        let own =
            (0..visible.count()).map(|index| visible.at(index) * width..(visible.at(index) + 1) * width);
        seen.extend(own.map(|at| self.own.lanes(at)));
        seen
    }

    fn before_len(&self) -> usize {
        self.before.iter().map(|before| before.keys.len()).sum::<usize>() / self.key_width()
    }

    /// Computes the softmax of one head's scores, with their cap and biases.
    #[inline(always)]
    fn weigh<S: Simd>(&self, simd: S, scores: &mut [f32], head: usize, query: &AttentionQuery<'_>) {
        if let Some(cap) = self.heads.cap {
            soft_cap(simd, scores, cap);
        }
        if let Some(bias) = self.bias {
            bias.add(scores, head, query.hidden, query.position);
        }
        softmax(simd, scores);
    }

    /// Computes the rows one after the other within each head.
    #[inline(always)]
    fn by_head<S: Simd>(&mut self, simd: S) {
        // Rows that see the first positions see the beginning of the same list.
        let firsts = self.queries.iter().filter_map(|query| match query.visible {
            Visible::First(count) => Some(count),
            Visible::Nodes(_) => None,
        });
        let shared = firsts.max().map_or_else(Vec::new, |count| self.listed(Visible::First(count)));
        let own = self.queries.iter().map(|query| match query.visible {
            Visible::First(_) => None,
            Visible::Nodes(_) => Some(self.listed(query.visible)),
        });
        let own: Vec<Option<Vec<KvSlices<'_, E>>>> = own.collect();
        let dim = self.dim();
        let width = self.width;
        let before = self.before_len();
        let mut weights = vec![0.0_f32; self.seen_max()];
        let mut gathered = Vec::new();
        let mut wide = vec![0.0_f32; E::SCRATCH * 2 * dim * self.seen_max()];
        for head in self.query_heads() {
            let (lane, key_lane) = self.lanes(head);
            let place = self.place(head);
            gather(&shared, key_lane.clone(), &mut wide, &mut gathered);
            let (keys, values) = gathered.split_at(gathered.len() / 2);
            let shared = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
            let shared: Vec<_> = shared.map(|(keys, values)| KvSlices { keys, values }).collect();
            for (index, (query, own)) in self.queries.iter().zip(&own).enumerate() {
                let own: Option<Vec<_>> = own.as_ref().map(|own| {
                    let mut wide = wide.chunks_exact_mut(2 * dim);
                    let lanes = own.iter().map(|kv| kv.lanes(key_lane.clone()));
                    lanes.map(|kv| kv.widened(wide.next().unwrap_or_default())).collect()
                });
                let listed = own.as_ref().unwrap_or(&shared);
                let seen = &listed[query.hidden..before + query.visible.count()];
                let q = &self.q[index * width..][lane.clone()];
                let weights = &mut weights[..seen.len()];
                let keys = seen.iter().map(|kv| kv.keys);
                dots(simd, q, self.heads.scale, weights.iter_mut().zip(keys));
                self.weigh(simd, weights, head, query);
                let weighted = weights.iter().zip(seen).map(|(&weight, kv)| (weight, kv.values));
                // The output is already zero.
                add_weighted(simd, weighted, &mut self.out[index][place.clone()]);
            }
        }
    }

    /// Computes a few positions at a time, for all heads of the task.
    #[inline(always)]
    fn by_position<S: Simd>(&mut self, simd: S, index: usize) {
        let query = &self.queries[index];
        let width = self.width;
        let seen = &self.listed(query.visible)[query.hidden..];
        let q = &self.q[index * width..(index + 1) * width];
        let (query_heads, key_lanes) = (self.query_heads(), self.key_lanes());
        let mut weights = vec![0.0_f32; query_heads.len() * seen.len()];
        let mut wide = vec![0.0_f32; E::SCRATCH * POSITIONS * key_lanes.len()];
        for (block, seen_now) in seen.chunks(POSITIONS).enumerate() {
            let keys = widened(seen_now.iter().map(|kv| &kv.keys[key_lanes.clone()]), &mut wide);
            let next = seen.chunks(POSITIONS).nth(block + 1).unwrap_or_default();
            for (head, weights) in query_heads.clone().zip(weights.chunks_exact_mut(seen.len())) {
                let (lane, key_lane) = (self.lane(head), self.key_place(head));
                self.request(head, next.iter().map(|kv| kv.keys));
                let weights = weights[block * POSITIONS..].iter_mut();
                let keys = keys[..seen_now.len()].iter().map(|keys| &keys[key_lane.clone()]);
                dots(simd, &q[lane.clone()], self.heads.scale, weights.zip(keys));
            }
        }
        for (head, weights) in query_heads.clone().zip(weights.chunks_exact_mut(seen.len())) {
            self.weigh(simd, weights, head, query);
        }
        for (block, seen_now) in seen.chunks(POSITIONS).enumerate() {
            let values = widened(seen_now.iter().map(|kv| &kv.values[key_lanes.clone()]), &mut wide);
            let next = seen.chunks(POSITIONS).nth(block + 1).unwrap_or_default();
            for (head, weights) in query_heads.clone().zip(weights.chunks_exact(seen.len())) {
                let key_lane = self.key_place(head);
                self.request(head, next.iter().map(|kv| kv.values));
                let weights = weights[block * POSITIONS..].iter();
                let weighted = weights
                    .zip(&values[..seen_now.len()])
                    .map(|(&weight, values)| (weight, &values[key_lane.clone()]));
                let place = self.place(head);
                add_weighted(simd, weighted, &mut self.out[index][place]);
            }
        }
    }
}

impl<'a, E: Float> KvSlices<'a, E> {
    #[inline(always)]
    fn lanes(self, lanes: Range<usize>) -> Self {
        KvSlices { keys: &self.keys[lanes.clone()], values: &self.values[lanes] }
    }

    /// Returns f32 slices: the originals, or copies converted into `wide`, which has space for both if they
    /// must be converted.
    #[inline(always)]
    fn widened(self, wide: &'a mut [f32]) -> KvSlices<'a> {
        let (keys, values) = wide.split_at_mut(wide.len() / 2);
        KvSlices { keys: E::widen(self.keys, keys), values: E::widen(self.values, values) }
    }
}

/// Returns up to [`POSITIONS`] rows of equal lengths as f32: the originals, or copies converted into `wide`,
/// which has space for all rows if they must be converted.
#[inline(always)]
fn widened<'a, E: Float>(rows: impl Iterator<Item = &'a [E]>, wide: &'a mut [f32]) -> [&'a [f32]; POSITIONS] {
    let mut slices = [&[][..]; POSITIONS];
    let width = (wide.len() / POSITIONS).max(1);
    let mut wide = wide.chunks_exact_mut(width);
    for (slice, row) in slices.iter_mut().zip(rows) {
        *slice = E::widen(row, wide.next().unwrap_or_default());
    }
    slices
}

/// Gathers the keys of one head, followed by its values, in contiguous memory: lanes of distant positions
/// would evict each other from the nearest cache. `wide` has space for one of them if they must be converted.
fn gather<E: Float>(
    seen: &[KvSlices<'_, E>],
    lanes: Range<usize>,
    wide: &mut [f32],
    gathered: &mut Vec<f32>,
) {
    let wide = &mut wide[..E::SCRATCH * lanes.len()];
    gathered.clear();
    seen.iter().for_each(|kv| gathered.extend_from_slice(E::widen(&kv.keys[lanes.clone()], wide)));
    seen.iter().for_each(|kv| gathered.extend_from_slice(E::widen(&kv.values[lanes.clone()], wide)));
}

#[cfg(test)]
mod tests {
    use float8::F8E4M3;
    use half::bf16;

    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|index| ((index * 37 + seed * 101) as f32 * 0.731).sin()).collect()
    }

    fn bias() -> DistanceBias {
        DistanceBias::new(6, 4, |head, distance| head as f32 * 0.3 + distance.clamp(-4, 4) as f32 * 0.1)
    }

    /// Computes the attention of one row in f64 by its definition.
    fn reference(
        q: &[f32],
        group: &AttentionGroup<'_>,
        row: usize,
        heads: Heads,
        bias: &DistanceBias,
    ) -> Vec<f64> {
        let query = &group.queries[row];
        let dim = q.len() / heads.queries;
        let width = dim * heads.keys;
        let before = group.before.iter().flat_map(|kv| kv.keys.chunks(width).zip(kv.values.chunks(width)));
        let own = (0..query.visible.count()).map(|index| {
            let at = query.visible.at(index) * width..(query.visible.at(index) + 1) * width;
            (&group.own.keys[at.clone()], &group.own.values[at])
        });
        let seen: Vec<_> = before.chain(own).enumerate().skip(query.hidden).collect();
        let mut out = Vec::new();
        for head in 0..heads.queries {
            let lane = head / (heads.queries / heads.keys) * dim;
            let weight = |(place, (key, _)): &(usize, (&[f32], &[f32]))| {
                let pairs = q[head * dim..][..dim].iter().zip(&key[lane..]);
                let score = pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
                let score = score * f64::from(heads.scale);
                let score = heads.cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh());
                let bias = bias.values()[head][bias.index(*place, query.position)];
                (score + f64::from(bias)).exp()
            };
            let weights: Vec<f64> = seen.iter().map(weight).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..dim).map(|column| {
                let values = seen.iter().map(|(_, (_, value))| f64::from(value[lane + column]));
                weights.iter().zip(values).map(|(weight, value)| weight * value).sum::<f64>() / total
            }));
        }
        out
    }

    #[test]
    fn rows_over_prefixes_and_paths_match_the_definition_alone_and_in_a_batch() {
        let bias = bias();
        for heads in [Heads::unscaled(6), Heads { queries: 6, keys: 3, scale: 0.35, cap: Some(0.4) }] {
            let width = heads.keys * 8;
            let own = [numbers(9 * width, 1), numbers(9 * width, 2)];
            let before = [numbers(4 * width, 3), numbers(4 * width, 4)];
            let group = |queries: &[AttentionQuery<'static>]| AttentionGroup {
                before: vec![KvSlices { keys: &before[0], values: &before[1] }],
                own: KvSlices { keys: &own[0], values: &own[1] },
                queries: queries.to_vec(),
                phase: Phase::Decode,
            };
            let queries = [
                AttentionQuery { visible: Visible::First(9), hidden: 0, position: 4 },
                AttentionQuery { visible: Visible::Nodes(&[0, 3, 7]), hidden: 0, position: 6 },
                AttentionQuery { visible: Visible::First(2), hidden: 5, position: 5 },
                AttentionQuery { visible: Visible::Nodes(&[8]), hidden: 4, position: 4 },
                AttentionQuery { visible: Visible::First(1), hidden: 0, position: 0 },
            ];
            let q = numbers(5 * 48, 5);
            let all = group(&queries);
            let together = attend(&q, std::slice::from_ref(&all), heads, Some(&bias));
            for (row, q) in q.chunks(48).enumerate() {
                let alone = attend(q, &[group(&queries[row..=row])], heads, Some(&bias));
                assert_eq!(alone, together[row * 48..(row + 1) * 48], "row {row} depends on the others");
                for (got, want) in alone.iter().zip(reference(q, &all, row, heads, &bias)) {
                    assert!((f64::from(*got) - want).abs() < 1e-5, "row {row}: got {got}, expected {want}");
                }
            }
        }
    }

    #[test]
    fn rows_of_a_prompt_match_the_definition_however_they_are_divided() {
        let bias = bias();
        for (dim, heads) in
            [(8, Heads::unscaled(6)), (20, Heads { queries: 6, keys: 3, scale: 0.35, cap: Some(0.4) })]
        {
            let width = heads.keys * dim;
            let own = [numbers(150 * width, 1), numbers(150 * width, 2)];
            let before = [numbers(70 * width, 3), numbers(70 * width, 4)];
            let group = |queries: &[AttentionQuery<'static>]| AttentionGroup {
                before: vec![KvSlices { keys: &before[0], values: &before[1] }],
                own: KvSlices { keys: &own[0], values: &own[1] },
                queries: queries.to_vec(),
                phase: Phase::Prefill,
            };
            let query = |row: usize| AttentionQuery {
                visible: Visible::First(row + 1),
                // Rows with and without a window, which ends within tiles and at their borders.
                hidden: (row + 70).saturating_sub([1000, 200, 90, 64, 1][row % 5]),
                position: row + 70,
            };
            let queries: Vec<AttentionQuery<'static>> = (0..150).map(query).collect();
            let row_width = heads.queries * dim;
            let q = numbers(150 * row_width, 5);
            let all = group(&queries);
            let together = attend(&q, std::slice::from_ref(&all), heads, Some(&bias));
            for (row, (q, got)) in q.chunks(row_width).zip(together.chunks(row_width)).enumerate() {
                for (got, want) in got.iter().zip(reference(q, &all, row, heads, &bias)) {
                    assert!((f64::from(*got) - want).abs() < 1e-5, "row {row}: got {got}, expected {want}");
                }
            }
            for chunk in [1, 3, 32, 100] {
                let parts = q.chunks(chunk * row_width).zip(queries.chunks(chunk));
                let divided: Vec<f32> =
                    parts.flat_map(|(q, queries)| attend(q, &[group(queries)], heads, Some(&bias))).collect();
                assert_eq!(divided, together, "in chunks of {chunk}");
            }
        }
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads_that_share_the_heads() {
        let bias = bias();
        let q = numbers(40 * 48, 5);
        let cases =
            [(3, Phase::Decode, 3), (3, Phase::Decode, 40), (1, Phase::Decode, 40), (3, Phase::Prefill, 5)];
        for (keys, phase, rows) in cases {
            let heads = Heads { queries: 6, keys, scale: 0.35, cap: Some(0.4) };
            let own = [1, 2].map(|seed| numbers(1500 * 8 * keys, seed));
            let query = |row: usize| AttentionQuery {
                visible: Visible::First(1460 + row),
                hidden: row,
                position: 1460 + row,
            };
            let group = AttentionGroup {
                before: Vec::new(),
                own: KvSlices { keys: &own[0], values: &own[1] },
                queries: (0..rows).map(query).collect(),
                phase,
            };
            let q = &q[..rows * 48];
            let computed = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| attend(q, std::slice::from_ref(&group), heads, Some(&bias)))
            };
            let want = computed(1);
            for (row, got) in want.chunks(48).enumerate() {
                for (got, want) in got.iter().zip(reference(&q[row * 48..][..48], &group, row, heads, &bias))
                {
                    assert!((f64::from(*got) - want).abs() < 1e-5, "row {row}: got {got}, expected {want}");
                }
            }
            for threads in [2, 3, 8] {
                assert_eq!(
                    computed(threads),
                    want,
                    "{keys} key heads, {phase:?}, {rows} rows, {threads} threads"
                );
            }
        }
    }

    #[test]
    fn rows_of_a_prompt_do_not_depend_on_positions_that_they_do_not_see() {
        let heads = Heads { queries: 6, keys: 3, scale: 0.35, cap: None };
        let width = 24;
        let q = numbers(100 * 48, 5);
        let computed = |disturbed: f32| {
            let mut own = [numbers(100 * width, 1), numbers(100 * width, 2)];
            own.iter_mut().for_each(|own| own[40 * width..41 * width].fill(disturbed));
            let query = |row: usize| AttentionQuery {
                visible: Visible::First(row + 1),
                hidden: if row < 60 { 0 } else { 41 },
                position: row,
            };
            let group = AttentionGroup {
                before: Vec::new(),
                own: KvSlices { keys: &own[0], values: &own[1] },
                queries: (0..100).map(query).collect(),
                phase: Phase::Prefill,
            };
            attend(&q, &[group], heads, None)
        };
        let (want, got) = (computed(0.5), computed(f32::NAN));
        for (row, (want, got)) in want.chunks(48).zip(got.chunks(48)).enumerate() {
            if (40..60).contains(&row) {
                assert!(got.iter().all(|value| value.is_nan()), "row {row} sees the position");
            } else {
                assert_eq!(got, want, "row {row} does not see the position");
            }
        }
    }

    #[test]
    fn smaller_keys_and_values_match_the_same_numbers_in_f32_alone_and_in_a_batch() {
        smaller_keys_and_values_match_f32(bf16::from_f32);
        smaller_keys_and_values_match_f32(F8E4M3::from_f32);
    }

    fn smaller_keys_and_values_match_f32<E: Float>(rounded: fn(f32) -> E) {
        let heads = Heads { queries: 6, keys: 3, scale: 0.35, cap: Some(0.4) };
        let width = 24;
        let narrow = |positions: usize, seed| -> Vec<E> {
            numbers(positions * width, seed).into_iter().map(rounded).collect()
        };
        let [own_keys, own_values] = [narrow(9, 1), narrow(9, 2)];
        let [keys_before, values_before] = [narrow(4, 3), narrow(4, 4)];
        let wide = |values: &[E]| -> Vec<f32> { values.iter().map(|value| value.to_f32()).collect() };
        let wide = [&own_keys, &own_values, &keys_before, &values_before].map(|values| wide(values));
        let queries = [
            AttentionQuery { visible: Visible::First(9), hidden: 0, position: 4 },
            AttentionQuery { visible: Visible::Nodes(&[0, 3, 7]), hidden: 0, position: 6 },
            AttentionQuery { visible: Visible::First(2), hidden: 5, position: 5 },
            AttentionQuery { visible: Visible::Nodes(&[8]), hidden: 4, position: 4 },
        ];
        let q = numbers(4 * 48, 5);
        let want = AttentionGroup {
            before: vec![KvSlices { keys: &wide[2][..], values: &wide[3] }],
            own: KvSlices { keys: &wide[0][..], values: &wide[1] },
            queries: queries.to_vec(),
            phase: Phase::Decode,
        };
        let want = attend(&q, &[want], heads, Some(&bias()));
        let group = |queries: &[AttentionQuery<'static>]| AttentionGroup {
            before: vec![KvSlices { keys: &keys_before[..], values: &values_before }],
            own: KvSlices { keys: &own_keys[..], values: &own_values },
            queries: queries.to_vec(),
            phase: Phase::Decode,
        };
        assert_eq!(attend(&q, &[group(&queries)], heads, Some(&bias())), want);
        for (row, q) in q.chunks(48).enumerate() {
            let alone = attend(q, &[group(&queries[row..=row])], heads, Some(&bias()));
            assert_eq!(alone, want[row * 48..(row + 1) * 48], "row {row} depends on the others");
        }
    }

    #[test]
    fn the_bias_depends_on_the_distance_and_is_constant_beyond_its_reach() {
        let bias = bias();
        for (key, query, want) in [(5, 5, 0.3), (6, 5, 0.4), (2, 5, 0.0), (0, 90, -0.1), (90, 0, 0.7)] {
            let got = bias.values()[1][bias.index(key, query)];
            assert!((got - want).abs() < 1e-6, "key {key}, query {query}");
        }
    }
}

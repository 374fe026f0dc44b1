//! Attention of single positions over keys that they share or do not share: prompts of any length, chains, trees.
//!
//! Every row names its keys and which of them it sees. So there is no padding and no mask of a whole batch: a row
//! cannot see anything but its own, and its result cannot depend on what else is in the step.

use std::sync::{OnceLock, RwLockReadGuard};

use candle_core::{Device, Layout, Result, Storage, Tensor};
use pulp::Arch;
use rayon::prelude::*;

use super::attention_loops::SomeRows;
use super::batched::{self, Plans};
use super::cpu;

/// Below this many multiplications a second thread costs more than it brings.
const SERIAL_MAX: usize = 1 << 19;

/// Rows that one task works on.
const ROWS_MAX: usize = 16;

/// Keys and values of one stack layer for one context: both `[N, H * D]`, position-major.
#[derive(Debug, Clone)]
pub(crate) struct KeyValues {
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

/// Which positions a row attends to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Visible<'a> {
    /// The first so many.
    First(usize),
    /// These, in the order of their distance in time: ancestors from the root down to the row itself.
    Nodes(&'a [u32]),
}

impl Visible<'_> {
    /// How many they are.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::First(count) => count,
            Self::Nodes(nodes) => nodes.len(),
        }
    }

    /// How many of the first it sees, if it sees those.
    pub(super) fn first(self) -> Option<usize> {
        match self {
            Self::First(count) => Some(count),
            Self::Nodes(_) => None,
        }
    }

    pub(super) fn at(self, index: usize) -> usize {
        match self {
            Self::First(_) => index,
            Self::Nodes(nodes) => nodes[index] as usize,
        }
    }

    /// The position behind the last one in storage.
    pub(super) fn end(self) -> usize {
        match self {
            Self::First(count) => count,
            Self::Nodes(nodes) => nodes.iter().max().map_or(0, |&last| last as usize + 1),
        }
    }
}

/// One query position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionRow<'a> {
    /// Positions before all others, seen whole.
    pub(crate) before: &'a [&'a KeyValues],
    /// Where its other keys and values are.
    pub(crate) kv: &'a KeyValues,
    /// Which of them it sees.
    pub(crate) visible: Visible<'a>,
    /// How many of the first of all these positions are out of its sight again; it sees at least one.
    pub(crate) hidden: usize,
    /// Its own place in the order of the visible positions, for the relative bias.
    pub(crate) position: usize,
}

impl<'a> AttentionRow<'a> {
    /// A row that sees these positions and no others.
    pub(crate) fn new(kv: &'a KeyValues, visible: Visible<'a>, position: usize) -> Self {
        Self { before: &[], kv, visible, hidden: 0, position }
    }
}

/// How the width of queries, keys and values is divided among heads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    /// Heads of the queries, a multiple of `keys`.
    pub(crate) queries: usize,
    /// Heads of the keys and values; each serves as many query heads, one behind the other.
    pub(crate) keys: usize,
    /// What scores are multiplied with.
    pub(crate) scale: f32,
}

impl Heads {
    /// Each query head has keys of its own, and scores stay as they are (T5 folds scaling into its weights).
    pub(crate) fn unscaled(count: usize) -> Self {
        Self { queries: count, keys: count, scale: 1.0 }
    }
}

/// A bias that each head adds to a score by the distance between key and query, the same beyond `reach`.
#[derive(Debug, Clone)]
pub(crate) struct RelativeBias {
    /// For each head, `2 * reach + 1` values for the distances `-reach..=reach`.
    values: Vec<Vec<f32>>,
    reach: usize,
    /// All of it on a device, once it is wanted there.
    table: OnceLock<Tensor>,
}

impl RelativeBias {
    /// `bias(head, key position - query position)` must be constant beyond `reach` on either side.
    pub(crate) fn new(heads: usize, reach: usize, bias: impl Fn(usize, i64) -> f32) -> Self {
        let (reach, span) = (reach, reach as i64);
        let values =
            (0..heads).map(|head| (-span..=span).map(|distance| bias(head, distance)).collect()).collect();
        Self { values, reach, table: OnceLock::new() }
    }

    /// Number of the value for a distance.
    pub(super) fn step(&self, key: usize, query: usize) -> usize {
        (key + self.reach).saturating_sub(query).min(2 * self.reach)
    }

    /// How many values a head has.
    pub(super) fn steps(&self) -> usize {
        2 * self.reach + 1
    }

    fn at(&self, head: usize, key: usize, query: usize) -> f32 {
        self.values[head][self.step(key, query)]
    }

    /// The values of all heads, f32 `[steps + 1, H]`, and minus infinity behind them. Stays on the first device that it
    /// is wanted on: a model has one.
    pub(super) fn table(&self, device: &Device) -> Result<Tensor> {
        if let Some(table) = self.table.get() {
            return Ok(table.clone());
        }
        let (heads, steps) = (self.values.len(), self.steps());
        let mut table: Vec<f32> =
            (0..steps).flat_map(|step| self.values.iter().map(move |values| values[step])).collect();
        table.extend(std::iter::repeat_n(f32::NEG_INFINITY, heads));
        let table = Tensor::from_vec(table, (steps + 1, heads), device)?;
        Ok(self.table.get_or_init(|| table).clone())
    }

    /// Adds the biases of all positions that a row sees to their scores.
    pub(super) fn add(&self, scores: &mut [f32], head: usize, row: &AttentionRow<'_>) {
        for (index, score) in scores.iter_mut().enumerate() {
            *score += self.at(head, row.hidden + index, row.position);
        }
    }
}

/// Softmax attention.
///
/// Axes: `R` rows, `H` query heads, `G` key heads, `D` width of a head.
/// * `q` `[R, H * D]`, one row per entry of `rows`, whose keys and values are `[N, G * D]`; returns `[R, H * D]`
/// * `plans`: one for all layers of a step; the loops of the CPU need none
pub(crate) fn attend(
    q: &Tensor,
    rows: &[AttentionRow<'_>],
    heads: Heads,
    bias: Option<&RelativeBias>,
    plans: &Plans,
) -> Result<Tensor> {
    let (count, width) = q.dims2()?;
    debug_assert_eq!((count, width % heads.queries, heads.queries % heads.keys), (rows.len(), 0, 0));
    if !cpu::is_plain(q) {
        return batched::attend(q, rows, heads, bias, plans);
    }
    let (q_storage, q_layout) = q.storage_and_layout();
    let queries = cpu::slice(&q_storage, q_layout)?;
    let locked: Vec<LockedRows<'_>> = rows.chunk_by(same_keys).map(LockedRows::new).collect();
    let groups = locked.iter().map(LockedRows::slices).collect::<Result<Vec<_>>>()?;
    let mut out = vec![0.0; count * width];
    let (mut tasks, mut queries_left, mut out_left) = (Vec::new(), queries, out.as_mut_slice());
    for (rows, own, before) in &groups {
        for rows in rows.chunks(ROWS_MAX) {
            let (queries, queries_rest) = queries_left.split_at(rows.len() * width);
            let (out, out_rest) = std::mem::take(&mut out_left).split_at_mut(rows.len() * width);
            (queries_left, out_left) = (queries_rest, out_rest);
            tasks.push(SomeRows { queries, before, own: *own, rows, heads, bias, out });
        }
    }
    let work: usize = tasks.iter().map(|task| 2 * task.seen_max() * task.queries.len()).sum();
    let arch = Arch::new();
    if work <= SERIAL_MAX {
        tasks.into_iter().for_each(|task| arch.dispatch(task));
    } else {
        tasks.into_par_iter().for_each(|task| arch.dispatch(task));
    }
    Tensor::from_vec(out, (count, width), q.device())
}

/// Whether rows look into the same keys and values.
pub(super) fn same_keys(a: &AttentionRow<'_>, b: &AttentionRow<'_>) -> bool {
    std::ptr::eq(a.kv, b.kv) && std::ptr::eq(a.before, b.before)
}

/// Read locks on the numbers behind keys and values.
struct Locked<'a> {
    keys: (RwLockReadGuard<'a, Storage>, &'a Layout),
    values: (RwLockReadGuard<'a, Storage>, &'a Layout),
}

/// Keys and values, position after position.
pub(super) type Slices<'a> = (&'a [f32], &'a [f32]);

impl<'a> Locked<'a> {
    fn new(kv: &'a KeyValues) -> Self {
        Self { keys: kv.keys.storage_and_layout(), values: kv.values.storage_and_layout() }
    }

    fn slices(&self) -> Result<Slices<'_>> {
        Ok((cpu::slice(&self.keys.0, self.keys.1)?, cpu::slice(&self.values.0, self.values.1)?))
    }
}

/// Rows with the same keys, and their locks.
struct LockedRows<'a> {
    rows: &'a [AttentionRow<'a>],
    own: Locked<'a>,
    before: Vec<Locked<'a>>,
}

/// The same with what was locked: rows, their own keys and values, and those before.
type SlicedRows<'a> = (&'a [AttentionRow<'a>], Slices<'a>, Vec<Slices<'a>>);

impl<'a> LockedRows<'a> {
    fn new(rows: &'a [AttentionRow<'a>]) -> Self {
        let before = rows[0].before.iter().map(|kv| Locked::new(kv)).collect();
        Self { rows, own: Locked::new(rows[0].kv), before }
    }

    fn slices(&self) -> Result<SlicedRows<'_>> {
        let before = self.before.iter().map(Locked::slices).collect::<Result<_>>()?;
        Ok((self.rows, self.own.slices()?, before))
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;

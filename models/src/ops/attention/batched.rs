//! Attention of many queries over the same keys on devices: prompts that are opened, and long chains.
//!
//! A group of queries names the keys and values that it attends to, and each query sees a range of them. Groups of similar sizes form a
//! batch, in which the shorter ones are padded. For each batch heads are brought together, two products are computed with all weights
//! in between, and the results go back to their rows; nothing is launched group by group.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use ntl_kernels::Heads;

use super::groups::KeyGroup;
use super::heads::{HeadBatch, HeadSource, PaddedQuery, unpack};
use super::rows::RelativeBias;
use crate::ops::tensors::{matmul, wide_product};

/// Pairs of query and key in a batch, for each head; a batch of one group may have more.
const PAIRS_MAX: usize = 1 << 22;

/// Pairs that padding may add to a batch in any case: with 32 heads scores and weights of so many take 25 MB, which a GPU writes and reads
/// in about the time that the five launches of another batch take. Beyond it, padding adds at most a quarter. (Reckoned, not measured.)
const PADDING: usize = 1 << 16;

/// What the queries of a pass attend to, the same in every layer.
pub(crate) struct Plan<'a> {
    batches: Vec<Batch>,
    /// u32, of all batches.
    table: Tensor,
    rows: usize,
    bias: Option<&'a RelativeBias>,
}

/// The batches of a plan, whose numbers are in a table that is not on the device yet.
pub(super) struct Batches {
    batches: Vec<Batch>,
    rows: usize,
}

/// `C` groups with `M` queries each.
struct Batch {
    groups: usize,
    /// [`PaddedQuery`] `[C * M]` in the table.
    queries: Range<usize>,
    /// Keys of a group, `N`.
    keys: usize,
    /// The slots of all keys, `[C * N]` in the table. None where they are the first of those of the batch before, to which an earlier
    /// part of the same prompt attends.
    slots: Option<Range<usize>>,
}

/// A part of a group, see [`KeyGroup::split`].
struct Part<'a> {
    /// The number of the group.
    source: usize,
    first_row: usize,
    group: KeyGroup<'a>,
}

impl Batches {
    /// `groups`: all queries, in order, each of which sees a range. Appends to the numbers of a table.
    pub(super) fn new(groups: Vec<KeyGroup<'_>>, table: &mut Vec<u32>) -> Self {
        let parts = groups.into_iter().enumerate().flat_map(|(source, group)| {
            group.split().into_iter().map(move |group| Part { source, first_row: 0, group })
        });
        let (mut parts, mut rows): (Vec<Part<'_>>, usize) = (parts.collect(), 0);
        for part in &mut parts {
            part.first_row = rows;
            rows += part.group.queries.len();
        }
        let sizes: Vec<_> = parts.iter().map(|part| &part.group).collect();
        let members: Vec<Vec<&Part<'_>>> = batched(&sizes)
            .into_iter()
            .map(|batch| batch.into_iter().map(|at| &parts[at]).collect())
            .collect();
        let mut batches = Vec::new();
        for sharing in members.chunk_by(|a, b| is_alone(a) && is_alone(b) && a[0].source == b[0].source) {
            // A later part of a prompt sees what an earlier one sees, so the longest slots begin with those of the others.
            let keys = sharing.iter().flatten().map(|part| part.group.keys()).max().unwrap_or(0);
            let longest = sharing.iter().max_by_key(|parts| parts[0].group.keys());
            let mut slots = Some(put(table, |table| {
                longest.into_iter().flatten().for_each(|part| table.extend(part.group.padded_slots(keys)));
            }));
            for parts in sharing {
                let own_keys = if is_alone(parts) { parts[0].group.keys() } else { keys };
                let queries = put(table, |table| push_queries(parts, table));
                batches.push(Batch { groups: parts.len(), queries, keys: own_keys, slots: slots.take() });
            }
        }
        Self { batches, rows }
    }

    /// `table`: the numbers on the device.
    pub(super) fn plan<'a>(self, table: Tensor, bias: Option<&'a RelativeBias>) -> Plan<'a> {
        Plan { batches: self.batches, table, rows: self.rows, bias }
    }
}

impl<'a> Plan<'a> {
    /// Of queries that are all of a pass, in order, each of which sees a range.
    pub(crate) fn new(
        groups: Vec<KeyGroup<'_>>,
        bias: Option<&'a RelativeBias>,
        device: &Device,
    ) -> Result<Self> {
        let mut numbers = Vec::new();
        let batches = Batches::new(groups, &mut numbers);
        let count = numbers.len();
        Ok(batches.plan(Tensor::from_vec(numbers, count, device)?, bias))
    }

    /// Softmax attention of the queries, in the order of the groups; returns `[R, H * D]` in the type of the source.
    pub(crate) fn attend(&self, source: HeadSource<'_>, heads: Heads) -> Result<Tensor> {
        let numbers = |range: &Range<usize>| self.table.narrow(0, range.start, range.len());
        let (mut results, mut kv) = (Vec::new(), None);
        for batch in &self.batches {
            let at = HeadBatch { queries: numbers(&batch.queries)?, groups: batch.groups, heads };
            let slots = batch.slots.as_ref().map(numbers).transpose()?;
            let packed = at.pack(source, slots.as_ref())?;
            if packed.kv.is_some() {
                kv = packed.kv;
            }
            let Some([keys, values]) = &kv else { candle_core::bail!("the first batch has no slots") };
            let [keys, values] = [keys.narrow(1, 0, batch.keys)?, values.narrow(1, 0, batch.keys)?];
            let weights = at.weights(&wide_product(&packed.q, &keys)?, self.bias, source.dtype)?;
            results.push((at, matmul(&weights, &values)?));
        }
        unpack(&results, self.rows)
    }
}

/// The range of what is put into a table.
fn put(table: &mut Vec<u32>, push: impl FnOnce(&mut Vec<u32>)) -> Range<usize> {
    let from = table.len();
    push(table);
    from..table.len()
}

fn is_alone(batch: &[&Part<'_>]) -> bool {
    batch.len() == 1
}

fn push_queries(parts: &[&Part<'_>], table: &mut Vec<u32>) {
    let rows = parts.iter().map(|part| part.group.queries.len()).max().unwrap_or(0);
    for Part { first_row, group, .. } in parts {
        for (row, query) in (*first_row..).zip(&group.queries) {
            PaddedQuery::new(row, group.range(query), query.position).push_to(table);
        }
        (group.queries.len()..rows).for_each(|_| PaddedQuery::PADDING.push_to(table));
    }
}

/// The groups of each batch, by their indices. Largest first, and within a batch in order.
pub(super) fn batched(groups: &[&KeyGroup<'_>]) -> Vec<Vec<usize>> {
    let mut by_size: Vec<usize> = (0..groups.len()).collect();
    by_size.sort_by_key(|&index| std::cmp::Reverse((groups[index].slots.len(), groups[index].queries.len())));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let (mut rows, mut keys, mut pairs) = (0, 0, 0);
    for index in by_size {
        let group = groups[index];
        let (all_rows, all_pairs) = (rows.max(group.queries.len()), pairs + group.pairs());
        match batches.last_mut() {
            Some(batch) if fits((batch.len() + 1) * all_rows * keys.max(group.slots.len()), all_pairs) => {
                batch.push(index);
                (rows, pairs) = (all_rows, all_pairs);
            }
            _ => {
                batches.push(vec![index]);
                (rows, keys, pairs) = (group.queries.len(), group.slots.len(), group.pairs());
            }
        }
    }
    batches.iter_mut().for_each(|batch| batch.sort_unstable());
    batches.sort_unstable();
    batches
}

/// Whether a batch of several groups may have so many pairs for so many that are computed for a query.
fn fits(padded: usize, pairs: usize) -> bool {
    padded <= PAIRS_MAX && padded - pairs <= (pairs / 4).max(PADDING)
}

//! Attention of many queries over the same keys on devices: prompts during prefill, and long chains.
//!
//! A group of queries names the keys and values that it attends to, and each query sees a range of them.
//! Groups of similar sizes form a batch; the smaller ones are padded. For each batch, heads are packed, two
//! matmuls are computed with the softmax between them, and the results are written back to their rows.
//! Nothing is launched group by group.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use ntl_kernels::Heads;

use super::bias::RelativeBias;
use super::heads::{PaddedQuery, QkvSource, QueryBatch, unpack};
use super::slot_groups::SlotGroup;
use crate::ops::tensors::{matmul, wide_product};

/// Maximum number of query-key pairs in a batch, per head. A batch of one group may have more.
const PAIRS_MAX: usize = 1 << 22;

/// Number of pairs that padding may always add to a batch. With 32 heads, scores and weights of this many
/// pairs need 25 MB, which a GPU writes and reads in about the time of the five launches of another batch.
/// Beyond this number, padding adds at most a quarter. (Calculated, not measured.)
const PADDING: usize = 1 << 16;

/// Key counts are padded to a multiple of this, because the rows of scores and weights have this length, and
/// cuBLAS needs rows of a multiple of 16 bytes for its fastest kernels.
const KEYS_MULTIPLE: usize = 8;

/// The keys that the queries of a pass attend to, the same in every layer.
pub(crate) struct Plan<'a> {
    batches: Vec<Batch>,
    /// u32 table of all batches.
    table: Tensor,
    rows: usize,
    bias: Option<&'a RelativeBias>,
}

/// The batches of a plan before their table is uploaded to the device.
pub(super) struct Batches {
    batches: Vec<Batch>,
    rows: usize,
}

/// `C` groups with `M` queries each.
struct Batch {
    groups: usize,
    /// [`PaddedQuery`] `[C * M]` in the table.
    queries: Range<usize>,
    /// Number of keys in a group, `N`.
    keys: usize,
    /// Slots of all keys, `[C * N]` in the table. `None` if they are the first slots of the previous batch,
    /// to which an earlier part of the same prompt attends.
    slots: Option<Range<usize>>,
}

/// A part of a group, see [`SlotGroup::split`].
struct Part<'a> {
    /// Index of the group.
    source: usize,
    first_row: usize,
    group: SlotGroup<'a>,
}

impl Batches {
    /// Groups all queries into batches and appends their entries to `table`. `groups` contains the queries in
    /// order; each sees a range.
    pub(super) fn new(groups: Vec<SlotGroup<'_>>, table: &mut Vec<u32>) -> Self {
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
            // A later part of a prompt sees all keys of an earlier part, so the longest list of slots begins
            // with the others.
            let keys = sharing.iter().flatten().map(|part| padded_keys(part)).max().unwrap_or(0);
            let longest = sharing.iter().max_by_key(|parts| parts[0].group.keys());
            let mut slots = Some(put(table, |table| {
                longest.into_iter().flatten().for_each(|part| table.extend(part.group.padded_slots(keys)));
            }));
            for parts in sharing {
                let own_keys = if is_alone(parts) { padded_keys(parts[0]) } else { keys };
                let queries = put(table, |table| push_queries(parts, table));
                batches.push(Batch { groups: parts.len(), queries, keys: own_keys, slots: slots.take() });
            }
        }
        Self { batches, rows }
    }

    /// Creates the plan. `table` contains the entries on the device.
    pub(super) fn plan<'a>(self, table: Tensor, bias: Option<&'a RelativeBias>) -> Plan<'a> {
        Plan { batches: self.batches, table, rows: self.rows, bias }
    }
}

impl<'a> Plan<'a> {
    /// Creates a plan for all queries of a pass, in order; each sees a range.
    pub(crate) fn new(
        groups: Vec<SlotGroup<'_>>,
        bias: Option<&'a RelativeBias>,
        device: &Device,
    ) -> Result<Self> {
        let mut numbers = Vec::new();
        let batches = Batches::new(groups, &mut numbers);
        let count = numbers.len();
        Ok(batches.plan(Tensor::from_vec(numbers, count, device)?, bias))
    }

    /// Computes softmax attention of the queries, in the order of the groups. Returns `[R, H * D]` in the
    /// type of the source.
    pub(crate) fn attend(&self, source: QkvSource<'_>, heads: Heads) -> Result<Tensor> {
        let mut results = Vec::new();
        let mut kv = None;
        for batch in &self.batches {
            let queries = self.entries(&batch.queries)?;
            let query_batch = QueryBatch { queries, groups: batch.groups, heads };
            let slots = batch.slots.as_ref().map(|range| self.entries(range)).transpose()?;
            let packed = query_batch.pack(source, slots.as_ref())?;
            if packed.kv.is_some() {
                kv = packed.kv;
            }
            let Some([keys, values]) = &kv else { candle_core::bail!("the first batch has no slots") };
            let [keys, values] = [keys.narrow(1, 0, batch.keys)?, values.narrow(1, 0, batch.keys)?];
            let scores = wide_product(&packed.q, &keys)?;
            let weights = query_batch.weights(&scores, self.bias, source.dtype)?;
            results.push((query_batch, matmul(&weights, &values)?));
        }
        unpack(&results, self.rows)
    }

    fn entries(&self, range: &Range<usize>) -> Result<Tensor> {
        self.table.narrow(0, range.start, range.len())
    }
}

/// Runs `push` and returns the range of the entries that it appended to `table`.
fn put(table: &mut Vec<u32>, push: impl FnOnce(&mut Vec<u32>)) -> Range<usize> {
    let from = table.len();
    push(table);
    from..table.len()
}

fn padded_keys(part: &Part<'_>) -> usize {
    part.group.keys().next_multiple_of(KEYS_MULTIPLE)
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

/// Returns the groups of each batch, by index. Groups are assigned to batches from the largest to the
/// smallest; batches and their groups are then sorted by index.
pub(super) fn batched(groups: &[&SlotGroup<'_>]) -> Vec<Vec<usize>> {
    let mut by_size: Vec<usize> = (0..groups.len()).collect();
    by_size.sort_by_key(|&index| std::cmp::Reverse((groups[index].slots.len(), groups[index].queries.len())));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let (mut rows, mut keys, mut pairs) = (0, 0, 0);
    for index in by_size {
        let group = groups[index];
        let all_rows = rows.max(group.queries.len());
        let all_pairs = pairs + group.pairs();
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

/// Returns whether a batch of several groups may be padded to `padded` pairs if `pairs` pairs are visible.
fn fits(padded: usize, pairs: usize) -> bool {
    padded <= PAIRS_MAX && padded - pairs <= (pairs / 4).max(PADDING)
}

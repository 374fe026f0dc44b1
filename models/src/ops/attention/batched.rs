//! Attention in candle's operations, for many queries over the same keys on devices: prompts that are opened, and long chains.
//!
//! The keys and values of all contexts are rows of one tensor. A group of queries names those that it attends to, and each query sees
//! a range of them, which a mask says. Groups of similar sizes form a batch, in which the shorter ones are padded. A pass reads the keys
//! and values of a batch by one operation, and launches nothing group by group.

use candle_core::{DType, Device, Result, Tensor};
use ntl_kernels::{AttentionQuery, Heads};

use super::groups::KeyGroup;
use super::rows::RelativeBias;
use crate::ops::tensors::{matmul, wide_product};

/// Pairs of query and key in a batch, for each head; a batch of one group may have more.
const PAIRS_MAX: usize = 1 << 22;

/// Pairs that padding may add to a batch in any case, since another batch launches every kernel again. Beyond it, padding adds at
/// most a quarter.
const PADDING: usize = 1 << 14;

/// Added to the scores of keys that a query does not see, whose weights become 0.
const UNSEEN: f64 = -1e30;

/// The tensors that slots are rows of.
#[derive(Clone, Copy)]
pub(crate) enum KvTensors<'a> {
    /// Keys of all slots, then their values, `[2 * slots, G * D]`.
    Joined(&'a Tensor),
    /// Each `[slots, G * D]`.
    Apart { keys: &'a Tensor, values: &'a Tensor },
}

/// Indices and masks of a pass's attention, which are the same in every layer.
pub(crate) struct Plan {
    batches: Vec<Batch>,
    /// For each query the place of its result in the output of all batches, `[R]`; none if they are in that order.
    row_places: Option<Tensor>,
}

/// What a plan is made for.
#[derive(Clone, Copy)]
pub(crate) struct PlanOptions<'a> {
    pub(crate) heads: Heads,
    pub(crate) bias: Option<&'a RelativeBias>,
    /// Slots of the joined tensors, behind whose keys the values are.
    pub(crate) capacity: usize,
}

/// `C` groups with `M` queries and `N` keys each.
struct Batch {
    groups: usize,
    rows: usize,
    keys: usize,
    /// The row of each query, `[C * M]`; none if they are all queries in order.
    query_ids: Option<Tensor>,
    /// The places of keys, then of values, in the joined tensors as lanes `[2 * slots * G, D]`: `[2 * C * G * N]`.
    lane_ids: Tensor,
    /// Added to scores, f32 `[C, H or 1, M, N]`: biases, and [`UNSEEN`].
    mask: Option<Tensor>,
}

/// Keys and values, each `[C * G, N, D]`.
struct Lanes {
    keys: Tensor,
    values: Tensor,
}

impl Plan {
    /// `groups`: all queries, in order, each of which sees a range.
    pub(crate) fn new(groups: Vec<KeyGroup<'_>>, options: PlanOptions<'_>, device: &Device) -> Result<Self> {
        let groups: Vec<KeyGroup<'_>> = groups.into_iter().flat_map(KeyGroup::split).collect();
        let mut first = 0;
        let firsts: Vec<usize> = groups
            .iter()
            .map(|group| {
                first += group.queries.len();
                first - group.queries.len()
            })
            .collect();
        let (mut batches, mut order) = (Vec::new(), Vec::new());
        for members in batched(&groups) {
            let members: Vec<_> = members.into_iter().map(|index| (firsts[index], &groups[index])).collect();
            batches.push(Batch::new(&members, options, device, &mut order)?);
        }
        let count = first;
        let mut places = vec![0; count];
        for (place, row) in order.iter().enumerate().rev() {
            // A row that pads its group occurs again; its first place counts.
            places[*row as usize] = place as u32;
        }
        let in_order = order.len() == count && places.iter().zip(0..).all(|(&place, row)| place == row);
        let row_places = if in_order { None } else { Some(Tensor::from_vec(places, count, device)?) };
        Ok(Self { batches, row_places })
    }

    /// Softmax attention of `q` `[R, H * D]`, in the order of the groups; returns `[R, H * D]`.
    pub(crate) fn attend(&self, q: &Tensor, kv: KvTensors<'_>, heads: Heads) -> Result<Tensor> {
        let q = q.to_dtype(kv.dtype())?;
        let batch = |batch: &Batch| batch.attend(&q, &batch.gather(kv, heads)?, heads);
        let parts = self.batches.iter().map(batch).collect::<Result<Vec<_>>>()?;
        let all = Tensor::cat(&parts, 0)?;
        match &self.row_places {
            Some(places) => all.index_select(places, 0),
            None => Ok(all),
        }
    }
}

/// The groups of each batch, by their indices. Largest first, and within a batch in order.
pub(super) fn batched(groups: &[KeyGroup<'_>]) -> Vec<Vec<usize>> {
    let mut by_size: Vec<usize> = (0..groups.len()).collect();
    by_size.sort_by_key(|&index| std::cmp::Reverse((groups[index].slots.len(), groups[index].queries.len())));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let (mut rows, mut keys, mut pairs) = (0, 0, 0);
    for index in by_size {
        let group = &groups[index];
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

impl Batch {
    /// Of groups, each with the number of its first query. Appends the numbers of its queries to `order`.
    fn new(
        groups: &[(usize, &KeyGroup<'_>)],
        options: PlanOptions<'_>,
        device: &Device,
        order: &mut Vec<u32>,
    ) -> Result<Self> {
        let rows = groups.iter().map(|(_, group)| group.queries.len()).max().unwrap_or(0);
        let keys = groups.iter().map(|(_, group)| group.slots.len()).max().unwrap_or(0);
        let mut query_ids = Vec::with_capacity(groups.len() * rows);
        let mut slots = Vec::with_capacity(groups.len() * keys);
        for (first, group) in groups {
            let filled = |row| first + if row < group.queries.len() { row } else { 0 };
            query_ids.extend((0..rows).map(|row| filled(row) as u32));
            slots.extend_from_slice(&group.slots);
            slots.extend(std::iter::repeat_n(group.slots[0], keys - group.slots.len()));
        }
        let in_order = query_ids.iter().zip(0..).all(|(&id, row)| id == row);
        order.extend_from_slice(&query_ids);
        let query_ids =
            if in_order { None } else { Some(Tensor::from_vec(query_ids, groups.len() * rows, device)?) };
        Ok(Self {
            groups: groups.len(),
            rows,
            keys,
            query_ids,
            lane_ids: lane_ids(slots, [groups.len(), keys], options, device)?,
            mask: mask(groups, [rows, keys], options.bias, device)?,
        })
    }

    /// The keys and values of the batch.
    fn gather(&self, kv: KvTensors<'_>, heads: Heads) -> Result<Lanes> {
        let (lanes, half) = (self.groups * heads.keys, self.groups * heads.keys * self.keys);
        let of = |all: &Tensor, ids: &Tensor| {
            let dim = all.dim(1)? / heads.keys;
            all.reshape(((), dim))?.index_select(ids, 0)
        };
        let shaped = |part: Tensor| part.reshape((lanes, self.keys, ()));
        match kv {
            KvTensors::Joined(all) => {
                let both = of(all, &self.lane_ids)?;
                Ok(Lanes {
                    keys: shaped(both.narrow(0, 0, half)?)?,
                    values: shaped(both.narrow(0, half, half)?)?,
                })
            }
            KvTensors::Apart { keys, values } => {
                let ids = self.lane_ids.narrow(0, 0, half)?;
                Ok(Lanes { keys: shaped(of(keys, &ids)?)?, values: shaped(of(values, &ids)?)? })
            }
        }
    }

    /// `q` `[R, H * D]` to `[C * M, H * D]`.
    fn attend(&self, q: &Tensor, lanes: &Lanes, heads: Heads) -> Result<Tensor> {
        let (groups, rows, dim) = (self.groups, self.rows, q.dim(1)? / heads.queries);
        let (shared, sharing) = (groups * heads.keys, heads.queries / heads.keys);
        let q = match &self.query_ids {
            Some(ids) => q.index_select(ids, 0)?,
            None => q.narrow(0, 0, groups * rows)?,
        };
        let q = q.reshape((groups, rows, heads.keys, sharing, dim))?.permute((0, 2, 3, 1, 4))?;
        let q = q.contiguous()?.reshape((shared, sharing * rows, dim))?;
        let mut scores = wide_product(&q, &lanes.keys)?;
        if (heads.scale - 1.0).abs() > f32::EPSILON {
            scores = (scores * f64::from(heads.scale))?;
        }
        if let Some(mask) = &self.mask {
            let shape = (groups, heads.queries, rows, self.keys);
            scores = scores.reshape(shape)?.broadcast_add(mask)?;
        }
        let weights = candle_nn::ops::softmax_last_dim(&scores)?.to_dtype(q.dtype())?;
        let weights = weights.reshape((shared, sharing * rows, self.keys))?;
        let sums = matmul(&weights, &lanes.values)?;
        let sums = sums.reshape((groups, heads.keys, sharing, rows, dim))?.permute((0, 3, 1, 2, 4))?;
        sums.contiguous()?.reshape((groups * rows, heads.queries * dim))
    }
}

impl KvTensors<'_> {
    fn dtype(self) -> DType {
        match self {
            Self::Joined(all) => all.dtype(),
            Self::Apart { keys, .. } => keys.dtype(),
        }
    }
}

/// The places of the heads of slots `[C, N]`, see [`Batch::lane_ids`].
fn lane_ids(
    slots: Vec<u32>,
    [groups, keys]: [usize; 2],
    options: PlanOptions<'_>,
    device: &Device,
) -> Result<Tensor> {
    let heads = options.heads.keys;
    let slots = Tensor::from_vec(slots, (1, groups, 1, keys), device)?;
    let first = (slots * heads as f64)?;
    let values = options.capacity * heads;
    let head: Vec<u32> = (0..heads).chain(values..values + heads).map(|head| head as u32).collect();
    let head = Tensor::from_vec(head, (2, 1, heads, 1), device)?;
    first.broadcast_add(&head)?.flatten_all()
}

/// The mask of a batch, see [`Batch::mask`], which the device computes from the ranges that queries see.
fn mask(
    groups: &[(usize, &KeyGroup<'_>)],
    [rows, keys]: [usize; 2],
    bias: Option<&RelativeBias>,
    device: &Device,
) -> Result<Option<Tensor>> {
    let padded = groups.iter().flat_map(|(_, group)| {
        let fill = std::iter::repeat_n(&group.queries[0], rows - group.queries.len());
        group
            .queries
            .iter()
            .chain(fill)
            .map(|query: &AttentionQuery<'_>| (group.range(query), query.position))
    });
    let (ranges, positions): (Vec<_>, Vec<_>) = padded.unzip();
    let count = ranges.len();
    // Exact in f32: no prompt has 2^24 positions.
    let column = |values: Vec<f32>| Tensor::from_vec(values, (count, 1), device);
    let places = || Tensor::from_vec((0..keys).map(|key| key as f32).collect(), (1, keys), device);
    let mut mask = None;
    if ranges.iter().any(|&[from, to]| from > 0 || to < keys) {
        let bounds = |index: usize| column(ranges.iter().map(|range| range[index] as f32).collect());
        let mut seen = places()?.broadcast_lt(&bounds(1)?)?;
        if ranges.iter().any(|&[from, _]| from > 0) {
            seen = (seen * places()?.broadcast_ge(&bounds(0)?)?)?;
        }
        let added = seen.to_dtype(DType::F32)?.affine(-UNSEEN, UNSEEN)?;
        mask = Some(added.reshape((groups.len(), 1, rows, keys))?);
    }
    let Some(bias) = bias else { return Ok(mask) };
    let positions = column(positions.into_iter().map(|position| position as f32).collect())?;
    let biases = bias.of_distances(&places()?.broadcast_sub(&positions)?, [groups.len(), rows, keys])?;
    match mask {
        Some(mask) => biases.broadcast_add(&mask).map(Some),
        None => Ok(Some(biases)),
    }
}

//! Attention of single positions over keys that they share or do not share: prompts of any length, chains, trees.
//!
//! Every row names its keys and which of them it sees. So there is no padding and no mask of a whole batch: a row
//! cannot see anything but its own, and its result cannot depend on what else is in the step.

use std::sync::RwLockReadGuard;

use candle_core::{DType, Device, Layout, Result, Storage, Tensor};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::cpu;

/// Below this many multiplications a second thread costs more than it brings.
const SERIAL_MAX: usize = 1 << 19;

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
    fn len(self) -> usize {
        match self {
            Self::First(count) => count,
            Self::Nodes(nodes) => nodes.len(),
        }
    }

    fn at(self, index: usize) -> usize {
        match self {
            Self::First(_) => index,
            Self::Nodes(nodes) => nodes[index] as usize,
        }
    }
}

/// One query position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionRow<'a> {
    /// Where its keys and values are.
    pub(crate) kv: &'a KeyValues,
    /// Which of them it sees; at least one.
    pub(crate) visible: Visible<'a>,
    /// Its own place in the order of the visible positions, for the relative bias.
    pub(crate) position: usize,
}

/// A bias that each head adds to a score by the distance between key and query, the same beyond `reach`.
#[derive(Debug, Clone)]
pub(crate) struct RelativeBias {
    /// For each head, `2 * reach + 1` values for the distances `-reach..=reach`.
    values: Vec<Vec<f32>>,
    reach: usize,
}

impl RelativeBias {
    /// `bias(head, key position - query position)` must be constant beyond `reach` on either side.
    pub(crate) fn new(heads: usize, reach: usize, bias: impl Fn(usize, i64) -> f32) -> Self {
        let (reach, span) = (reach, reach as i64);
        let values =
            (0..heads).map(|head| (-span..=span).map(|distance| bias(head, distance)).collect()).collect();
        Self { values, reach }
    }

    fn at(&self, head: usize, key: usize, query: usize) -> f32 {
        let from_left_end = (key + self.reach).saturating_sub(query).min(2 * self.reach);
        self.values[head][from_left_end]
    }
}

/// Softmax attention without scaling of the scores (T5 folds that into its weights).
///
/// * `q` `[R, H * D]`, one row per entry of `rows`; returns `[R, H * D]`
pub(crate) fn attend(
    q: &Tensor,
    rows: &[AttentionRow<'_>],
    heads: usize,
    bias: Option<&RelativeBias>,
) -> Result<Tensor> {
    let (count, width) = q.dims2()?;
    debug_assert_eq!((count, width % heads), (rows.len(), 0));
    if !cpu::is_plain(q) {
        return reference(q, rows, heads, bias);
    }
    let (q_storage, q_layout) = q.storage_and_layout();
    let queries = cpu::slice(&q_storage, q_layout)?;
    let locked: Vec<Locked<'_>> = rows.iter().map(|row| Locked::new(row.kv)).collect();
    let kvs = locked.iter().map(Locked::slices).collect::<Result<Vec<_>>>()?;
    let mut out = vec![0.0; count * width];
    let places = out.chunks_mut(width).zip(queries.chunks(width)).zip(rows.iter().zip(kvs));
    let tasks: Vec<OneRow<'_>> = places
        .map(|((out, query), (row, (keys, values)))| OneRow { query, keys, values, row, heads, bias, out })
        .collect();
    let work: usize = rows.iter().map(|row| 2 * row.visible.len() * width).sum();
    let arch = Arch::new();
    if work <= SERIAL_MAX {
        tasks.into_iter().for_each(|task| arch.dispatch(task));
    } else {
        tasks.into_par_iter().for_each(|task| arch.dispatch(task));
    }
    Tensor::from_vec(out, (count, width), q.device())
}

/// Read locks on the numbers behind one row's keys and values.
struct Locked<'a> {
    keys: (RwLockReadGuard<'a, Storage>, &'a Layout),
    values: (RwLockReadGuard<'a, Storage>, &'a Layout),
}

impl<'a> Locked<'a> {
    fn new(kv: &'a KeyValues) -> Self {
        Self { keys: kv.keys.storage_and_layout(), values: kv.values.storage_and_layout() }
    }

    fn slices(&self) -> Result<(&[f32], &[f32])> {
        Ok((cpu::slice(&self.keys.0, self.keys.1)?, cpu::slice(&self.values.0, self.values.1)?))
    }
}

/// All heads of one row.
struct OneRow<'a> {
    query: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    row: &'a AttentionRow<'a>,
    heads: usize,
    bias: Option<&'a RelativeBias>,
    out: &'a mut [f32],
}

impl WithSimd for OneRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = self.query.len();
        let dim = width / self.heads;
        let visible = self.row.visible;
        let mut weights = vec![0.0_f32; visible.len()];
        for head in 0..self.heads {
            let lane = head * dim..(head + 1) * dim;
            let query = &self.query[lane.clone()];
            for (index, weight) in weights.iter_mut().enumerate() {
                let key = &self.keys[visible.at(index) * width..][lane.clone()];
                let bias = self.bias.map_or(0.0, |bias| bias.at(head, index, self.row.position));
                *weight = cpu::dot(simd, query, key) + bias;
            }
            softmax(&mut weights);
            let out = &mut self.out[lane.clone()];
            for (index, &weight) in weights.iter().enumerate() {
                cpu::add_scaled(simd, out, weight, &self.values[visible.at(index) * width..][lane.clone()]);
            }
        }
    }
}

#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
        total += *score;
    }
    scores.iter_mut().for_each(|score| *score /= total);
}

/// The same, row by row in candle's operations, on any device.
fn reference(
    q: &Tensor,
    rows: &[AttentionRow<'_>],
    heads: usize,
    bias: Option<&RelativeBias>,
) -> Result<Tensor> {
    let dim = q.dim(1)? / heads;
    let one = |(index, row): (usize, &AttentionRow<'_>)| {
        let count = row.visible.len();
        let nodes: Vec<u32> = (0..count).map(|index| row.visible.at(index) as u32).collect();
        let nodes = Tensor::from_vec(nodes, count, q.device())?;
        let by_head = |tensor: &Tensor| -> Result<Tensor> {
            tensor.index_select(&nodes, 0)?.reshape((count, heads, dim))?.transpose(0, 1)?.contiguous()
        };
        let query = q.narrow(0, index, 1)?.reshape((heads, 1, dim))?;
        let mut scores = query.matmul(&by_head(&row.kv.keys)?.t()?)?.to_dtype(DType::F32)?;
        if let Some(bias) = bias {
            let at = |head| (0..count).map(move |key| bias.at(head, key, row.position));
            let values: Vec<f32> = (0..heads).flat_map(at).collect();
            scores = (scores
                + Tensor::from_vec(values, (heads, 1, count), &Device::Cpu)?.to_device(q.device())?)?;
        }
        let weights = scores.broadcast_sub(&scores.max_keepdim(2)?)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(2)?)?.to_dtype(q.dtype())?;
        weights.matmul(&by_head(&row.kv.values)?)?.reshape((1, heads * dim))
    };
    let rows = rows.iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&rows, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rows: usize, columns: usize) -> Tensor {
        Tensor::randn(0f32, 1f32, (rows, columns), &Device::Cpu).unwrap()
    }

    fn bias() -> RelativeBias {
        RelativeBias::new(3, 4, |head, distance| head as f32 * 0.3 + distance.clamp(-4, 4) as f32 * 0.1)
    }

    #[test]
    fn rows_over_prefixes_and_trees_equal_the_reference() {
        let contexts: Vec<_> = [(9, 24), (2, 24)]
            .map(|(n, width)| KeyValues { keys: random(n, width), values: random(n, width) })
            .into();
        let nodes = [0, 3, 7];
        let rows = [
            AttentionRow { kv: &contexts[0], visible: Visible::First(9), position: 4 },
            AttentionRow { kv: &contexts[1], visible: Visible::First(2), position: 1 },
            AttentionRow { kv: &contexts[0], visible: Visible::Nodes(&nodes), position: 2 },
            AttentionRow { kv: &contexts[0], visible: Visible::First(1), position: 0 },
        ];
        let q = random(4, 24);
        for bias in [None, Some(&bias())] {
            let got = attend(&q, &rows, 3, bias).unwrap();
            let difference = (&got - reference(&q, &rows, 3, bias).unwrap()).unwrap();
            let worst: f32 = difference.abs().unwrap().max_all().unwrap().to_scalar().unwrap();
            assert!(worst < 1e-5, "off by {worst}");
            for row in 0..4 {
                let alone = attend(&q.narrow(0, row, 1).unwrap(), &rows[row..=row], 3, bias).unwrap();
                let (alone, together) = (alone.to_vec2::<f32>().unwrap(), got.to_vec2::<f32>().unwrap());
                assert_eq!(alone[0], together[row], "row {row} depends on the others");
            }
        }
    }

    #[test]
    fn the_bias_is_that_of_the_distance_and_constant_beyond_its_reach() {
        let bias = bias();
        for (key, query, want) in [(5, 5, 0.3), (6, 5, 0.4), (2, 5, 0.0), (0, 90, -0.1), (90, 0, 0.7)] {
            assert!((bias.at(1, key, query) - want).abs() < 1e-6, "key {key}, query {query}");
        }
    }
}

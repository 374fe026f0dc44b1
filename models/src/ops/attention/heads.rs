//! The operations of a [`Plan`](super::Plan) around its matmuls: packing the heads of queries, keys and
//! values, converting scores to weights, and writing results back to their rows. Uses kernels on a GPU, and
//! plain loops on the host otherwise.

use candle_core::{DType, Device, Result, Tensor};
use ntl_kernels::Heads;

use super::bias::RelativeBias;
#[cfg(feature = "cuda")]
use crate::ops::own_kernels::OwnKernel;

#[cfg(feature = "cuda")]
const _: () =
    assert!(PaddedQuery::NUMBERS == ntl_cuda::QUERY_NUMBERS && PaddedQuery::NO_ROW == ntl_cuda::NO_ROW);

/// A query in the table of a plan.
#[derive(Clone, Copy)]
pub(super) struct PaddedQuery([u32; Self::NUMBERS]);

impl PaddedQuery {
    pub(super) const NUMBERS: usize = 4;
    const NO_ROW: u32 = u32::MAX;

    /// A query that pads a group; it sees nothing.
    pub(super) const PADDING: Self = Self([Self::NO_ROW, 0, 0, 0]);

    /// Creates a row that sees keys from `first` to `end` (exclusive) and has the index `position` among
    /// them.
    pub(super) fn new(row: usize, [first, end]: [usize; 2], position: usize) -> Self {
        Self([row, first, end, position].map(|number| number as u32))
    }

    pub(super) fn push_to(self, table: &mut Vec<u32>) {
        table.extend(self.0);
    }
}

/// Queries, keys and values of a layer, and the element type of attention's matmuls.
#[derive(Clone, Copy)]
pub(crate) struct QkvSource<'a> {
    /// f32 `[R, width]`, with queries in the first columns.
    q: &'a Tensor,
    /// `[.., width]`, in f32, fp8 or `dtype`.
    kv: &'a Tensor,
    /// Elements of `kv` at which keys and values of slot 0 begin, and the number of rows, counted from these
    /// elements, that are slots.
    keys_at: usize,
    values_at: usize,
    slots: usize,
    dim: usize,
    pub(super) dtype: DType,
}

impl<'a> QkvSource<'a> {
    /// Uses projections f32 `[R, (H + 2 * G) * D]`: queries, keys and values of each row. The slot of a row
    /// is its number.
    pub(crate) fn rows(qkv: &'a Tensor, heads: Heads, dtype: DType) -> Result<Self> {
        let (slots, width) = qkv.dims2()?;
        let dim = width / (heads.queries + 2 * heads.keys);
        let keys_at = heads.queries * dim;
        let values_at = (heads.queries + heads.keys) * dim;
        Ok(Self { q: qkv, kv: qkv, keys_at, values_at, slots, dim, dtype })
    }

    /// Uses queries f32 `[R, H * D]`, and the slots of `slab` `[2 * slots, G * D]`: keys of all slots, then
    /// their values, in `dtype` or fp8.
    pub(crate) fn cached(q: &'a Tensor, slab: &'a Tensor, heads: Heads, dtype: DType) -> Result<Self> {
        let (places, width) = slab.dims2()?;
        let slots = places / 2;
        let dim = width / heads.keys;
        Ok(Self { q, kv: slab, keys_at: 0, values_at: slots * width, slots, dim, dtype })
    }
}

/// `C` groups with `M` queries each.
pub(super) struct QueryBatch {
    /// [`PaddedQuery`] `[C * M]`.
    pub(super) queries: Tensor,
    pub(super) groups: usize,
    pub(super) heads: Heads,
}

/// Queries, keys and values, packed by head.
pub(super) struct PackedQkv {
    /// `[C * G, H / G * M, D]`.
    pub(super) q: Tensor,
    /// Keys and values, each `[C * G, N, D]`, if slots are given.
    pub(super) kv: Option<[Tensor; 2]>,
}

impl QueryBatch {
    /// Packs heads in the type of the source. Keys and values are packed for `slots` `[C * N]`.
    pub(super) fn pack(&self, source: QkvSource<'_>, slots: Option<&Tensor>) -> Result<PackedQkv> {
        #[cfg(feature = "cuda")]
        if OwnKernel::PromptAttention.computes(source.q) {
            let QkvSource { q, kv, keys_at, values_at, slots: count, dim, dtype } = source;
            let from = ntl_cuda::HeadSource { q, kv, keys_at, values_at, slots: count };
            let ntl_cuda::PackedHeads { q, kv } = self.on_gpu(dim).pack(from, slots, dtype)?;
            return Ok(PackedQkv { q, kv });
        }
        let q = self.pack_queries(source)?;
        let Some(slots) = slots else { return Ok(PackedQkv { q, kv: None }) };
        let slots = slots.to_vec1::<u32>()?;
        debug_assert!(slots.iter().all(|&slot| (slot as usize) < source.slots));
        let stored: Vec<f32> = source.kv.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let keys = self.pack_slots(source, &stored[source.keys_at..], &slots)?;
        let values = self.pack_slots(source, &stored[source.values_at..], &slots)?;
        Ok(PackedQkv { q, kv: Some([keys, values]) })
    }

    fn pack_queries(&self, source: QkvSource<'_>) -> Result<Tensor> {
        let queries = self.queries()?;
        let rows = queries.len() / self.groups;
        let dim = source.dim;
        let projected = source.q.to_vec2::<f32>()?;
        let mut packed = Vec::new();
        for group in queries.chunks(rows) {
            for head in 0..self.heads.queries {
                for [row, ..] in group {
                    match projected.get(*row as usize) {
                        Some(row) => packed.extend_from_slice(&row[head * dim..][..dim]),
                        // A GPU leaves these elements unwritten.
                        None => packed.extend(std::iter::repeat_n(f32::NAN, dim)),
                    }
                }
            }
        }
        self.packed(packed, self.heads.queries / self.heads.keys * rows, source)
    }

    /// Packs the keys or the values of slots. `stored` begins with those of slot 0.
    fn pack_slots(&self, source: QkvSource<'_>, stored: &[f32], slots: &[u32]) -> Result<Tensor> {
        let width = source.kv.dim(1)?;
        let dim = source.dim;
        let keys = slots.len() / self.groups;
        let mut packed = Vec::new();
        for group in slots.chunks(keys) {
            for head in 0..self.heads.keys {
                for &slot in group {
                    packed.extend_from_slice(&stored[slot as usize * width + head * dim..][..dim]);
                }
            }
        }
        self.packed(packed, keys, source)
    }

    /// Returns packed values as `[C * G, lanes, D]` in the type of the source.
    fn packed(&self, values: Vec<f32>, lanes: usize, source: QkvSource<'_>) -> Result<Tensor> {
        let shape = (self.groups * self.heads.keys, lanes, source.dim);
        Tensor::from_vec(values, shape, source.q.device())?.to_dtype(source.dtype)
    }

    /// Returns softmax weights, in `dtype`, for scores f32 `[C * G, H / G * M, N]`, which are scaled, capped
    /// and biased; 0 for keys that a query does not see.
    pub(super) fn weights(
        &self,
        scores: &Tensor,
        bias: Option<&RelativeBias>,
        dtype: DType,
    ) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if OwnKernel::PromptAttention.computes(scores) {
            let bias = bias.map(|bias| bias.table(scores.device())).transpose()?;
            return self.on_gpu(0).weights(scores, self.heads.scale, self.heads.cap, bias.as_ref(), dtype);
        }
        let queries = self.queries()?;
        let keys = scores.dim(2)?;
        let rows = queries.len() / self.groups;
        let mut values: Vec<f32> = scores.flatten_all()?.to_vec1()?;
        for (lane, scores) in values.chunks_mut(keys).enumerate() {
            let group = lane / rows / self.heads.queries;
            let head = lane / rows % self.heads.queries;
            let [_, first, end, position] = queries[group * rows + lane % rows].map(|number| number as usize);
            let seen = first..end;
            for (key, score) in scores.iter_mut().enumerate() {
                let added = bias.map_or(0.0, |bias| bias.at(head, key as i64 - position as i64));
                let scaled = *score * self.heads.scale;
                let capped = self.heads.cap.map_or(scaled, |cap| cap * (scaled / cap).tanh());
                *score = if seen.contains(&key) { capped + added } else { f32::NEG_INFINITY };
            }
            let max = scores.iter().copied().fold(-1e30, f32::max);
            let sum: f32 = scores.iter().map(|score| (score - max).exp()).sum();
            scores
                .iter_mut()
                .for_each(|score| *score = if sum > 0.0 { (*score - max).exp() / sum } else { 0.0 });
        }
        Tensor::from_vec(values, scores.dims(), scores.device())?.to_dtype(dtype)
    }

    fn queries(&self) -> Result<Vec<[u32; PaddedQuery::NUMBERS]>> {
        Ok(self.queries.to_vec1()?.as_chunks().0.to_vec())
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, dim: usize) -> ntl_cuda::HeadBatch<'_> {
        let Self { queries, groups, heads } = self;
        let (heads, num_kv_heads) = (heads.queries, heads.keys);
        ntl_cuda::HeadBatch { queries, groups: *groups, heads, num_kv_heads, dim }
    }
}

/// Returns the results of batches, each `[C * G, H / G * M, D]`, by row: `[R, H * D]`. Every row must belong
/// to one query.
pub(super) fn unpack(batches: &[(QueryBatch, Tensor)], rows: usize) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if batches.iter().any(|(_, results)| OwnKernel::PromptAttention.computes(results)) {
        let batches = batches
            .iter()
            .map(|(batch, results)| Ok((batch.on_gpu(results.dim(2)?), results.clone())))
            .collect::<Result<Vec<_>>>()?;
        return ntl_cuda::unpack_heads(&batches, rows);
    }
    let mut out = vec![Vec::new(); rows];
    let (mut dtype, mut device) = (DType::F32, Device::Cpu);
    for (batch, results) in batches {
        let (queries, (_, _, dim)) = (batch.queries()?, results.dims3()?);
        let values: Vec<f32> = results.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        (dtype, device) = (results.dtype(), results.device().clone());
        let count = queries.len() / batch.groups;
        let heads = batch.heads.queries;
        for (index, [row, ..]) in queries.into_iter().enumerate() {
            let Some(out) = out.get_mut(row as usize) else { continue };
            let (group, query) = (index / count, index % count);
            *out = Vec::with_capacity(heads * dim);
            for head in 0..heads {
                let lane = (group * heads + head) * count + query;
                out.extend_from_slice(&values[lane * dim..][..dim]);
            }
        }
    }
    let width = out.first().map_or(0, Vec::len);
    Tensor::from_vec(out.concat(), (rows, width), &device)?.to_dtype(dtype)
}

//! The operations of prompt attention (many queries over the same keys) around its two matmuls: one launch
//! each.

use candle_core::{DType, Result, Tensor};

use crate::image::PROMPT;
use crate::launch::{Call, Grid, cached_suffix, gpu, output, reach, suffix};

/// Number of entries per query in the table of a batch. They are:
///
/// 1. its row, or [`NO_ROW`];
/// 2. the index in its group of the first key that it sees;
/// 3. the end of the keys that it sees;
/// 4. its own index.
pub const QUERY_NUMBERS: usize = 4;

/// The row of a query that pads its group.
pub const NO_ROW: u32 = u32::MAX;

const THREADS: usize = 256;

/// Number of keys per thread of the softmax, up to [`THREADS`] threads. Must equal the kernel's `SCORES`.
const SCORES: usize = 8;

/// The tensors with queries, keys and values.
#[derive(Clone, Copy)]
pub struct HeadSource<'a> {
    /// f32 `[R, width]`, with queries in the first columns.
    pub q: &'a Tensor,
    /// `[.., width]`, f32, fp8 or the packed type.
    pub kv: &'a Tensor,
    /// Elements of `kv` at which the keys and the values of slot 0 begin.
    pub keys_at: usize,
    pub values_at: usize,
    /// Number of rows of `kv`, counted from these elements, that are slots.
    pub slots: usize,
}

/// `C` groups with `M` queries each. Each query has `H` heads of width `D`, which share `G` key heads.
#[derive(Clone, Copy)]
pub struct HeadBatch<'a> {
    /// u32 `[C * M * 4]`, see [`QUERY_NUMBERS`].
    pub queries: &'a Tensor,
    pub groups: usize,
    pub heads: usize,
    pub num_kv_heads: usize,
    pub dim: usize,
}

/// Queries, keys and values, packed by head.
pub struct PackedHeads {
    /// `[C * G, H / G * M, D]`. The entries of padding queries are not written.
    pub q: Tensor,
    /// Keys and values, each `[C * G, N, D]`, if slots are given.
    pub kv: Option<[Tensor; 2]>,
}

impl HeadBatch<'_> {
    /// `M`.
    fn rows(&self) -> Result<usize> {
        let count = self.queries.elem_count();
        if self.groups == 0
            || self.num_kv_heads == 0
            || count == 0
            || !self.heads.is_multiple_of(self.num_kv_heads)
        {
            candle_core::bail!("{} groups of {} heads have nothing to attend", self.groups, self.heads)
        }
        if !count.is_multiple_of(self.groups * QUERY_NUMBERS) {
            candle_core::bail!("{count} numbers do not match {} groups of queries", self.groups)
        }
        Ok(count / self.groups / QUERY_NUMBERS)
    }

    /// Packs queries and, for `slots` u32 `[C * N]`, keys and values by head, in `dtype`.
    pub fn pack(&self, source: HeadSource<'_>, slots: Option<&Tensor>, dtype: DType) -> Result<PackedHeads> {
        let rows = self.rows()?;
        let device = gpu(source.q)?;
        let Self { groups, heads, num_kv_heads, dim, .. } = *self;
        let ((rows_count, q_width), (kv_rows, kv_width)) = (source.q.dims2()?, source.kv.dims2()?);
        let last = (source.slots.max(1) - 1) * kv_width + num_kv_heads * dim;
        if heads * dim > q_width
            || source.slots == 0
            || source.keys_at.max(source.values_at) + last > kv_rows * kv_width
        {
            candle_core::bail!("{heads} and {num_kv_heads} heads of {dim} elements are not in their tensors")
        }
        let keys = slots.map_or(0, Tensor::elem_count);
        if !keys.is_multiple_of(groups) {
            candle_core::bail!("{keys} slots cannot be divided into {groups} groups")
        }
        let q = output(device, &[groups * num_kv_heads, heads / num_kv_heads * rows, dim], dtype)?;
        let kv_shape = [groups * num_kv_heads, keys / groups, dim];
        let kv = match slots {
            Some(_) => Some([output(device, &kv_shape, dtype)?, output(device, &kv_shape, dtype)?]),
            None => None,
        };
        let [packed_keys, packed_values] = [0, 1].map(|index| kv.as_ref().map(|kv| &kv[index]));

        let kernel = format!("pack_heads_{}_{}", cached_suffix(source.kv.dtype())?, suffix(dtype)?);
        let mut call = Call::new(device, &PROMPT, &kernel)?;
        call.tensor(source.q, DType::F32, rows_count * q_width)?
            .tensor(source.kv, source.kv.dtype(), kv_rows * kv_width)?
            .tensor(self.queries, DType::U32, groups * rows * QUERY_NUMBERS)?
            .optional(slots, DType::U32, keys)?
            .tensor(&q, dtype, groups * heads * rows * dim)?
            .optional(packed_keys, dtype, keys * num_kv_heads * dim)?
            .optional(packed_values, dtype, keys * num_kv_heads * dim)?
            .wide(source.keys_at)
            .wide(source.values_at)
            .int(rows_count)?
            .int(source.slots)?
            .int(q_width)?
            .int(kv_width)?
            .int(heads)?
            .int(num_kv_heads)?
            .int(dim)?
            .int(groups)?
            .int(rows)?
            .int(keys / groups)?;
        // SAFETY: the arguments match the kernel's parameters. It has blocks for each query and for each key
        // and value. It skips rows after the last and clamps slots to the existing ones, regardless of their
        // values, and these are within `q` and `kv`.
        unsafe { call.launch(Grid::of_rows(groups * rows + keys, heads * dim))? };
        Ok(PackedHeads { q, kv })
    }

    /// Returns softmax weights in `dtype` for scores f32 `[C * G, H / G * M, N]`, which are scaled, become
    /// `cap * tanh(score / cap)` if there is a cap, and are biased by `bias` f32 `[H, 2 * reach + 1]`
    /// according to the distance from query to key. The weights of keys that a query does not see are 0,
    /// regardless of their scores.
    pub fn weights(
        &self,
        scores: &Tensor,
        scale: f32,
        cap: Option<f32>,
        bias: Option<&Tensor>,
        dtype: DType,
    ) -> Result<Tensor> {
        let rows = self.rows()?;
        let device = gpu(scores)?;
        let keys = scores.dim(2)?;
        let (biases, reach) = reach(bias, self.heads)?;
        let out = output(device, scores.dims(), dtype)?;
        let count = self.groups * self.heads * rows;
        let mut call = Call::new(device, &PROMPT, &format!("weigh_{}", suffix(dtype)?))?;
        call.tensor(scores, DType::F32, count * keys)?
            .tensor(self.queries, DType::U32, self.groups * rows * QUERY_NUMBERS)?
            .optional(bias, DType::F32, biases)?
            .tensor(&out, dtype, count * keys)?
            .float(scale)
            .float(cap.unwrap_or(0.0))
            .int(self.heads)?
            .int(rows)?
            .int(keys)?
            .int(reach)?;
        let threads = keys.div_ceil(SCORES).next_multiple_of(32).min(THREADS);
        // SAFETY: the arguments match the kernel's parameters. It has one block for each row of scores, whose
        // query is in the table. It accesses only existing elements of a row, regardless of the entries;
        // distances are within `reach`.
        unsafe { call.launch(Grid { blocks: [count, 1, 1], threads, shared_bytes: 0 })? };
        Ok(out)
    }

    /// Writes the results `[C * G, H / G * M, D]` of queries to their rows of `out`.
    fn unpack(&self, sums: &Tensor, out: &Tensor) -> Result<()> {
        let (rows, (rows_count, width), dtype) = (self.rows()?, out.dims2()?, out.dtype());
        let heads = self.heads;
        let dim = self.dim;
        let mut call = Call::new(gpu(out)?, &PROMPT, &format!("unpack_heads_{}", suffix(dtype)?))?;
        if width != heads * dim {
            candle_core::bail!("rows of {width} elements are not {heads} heads of {dim}")
        }
        call.tensor(sums, dtype, self.groups * heads * rows * dim)?
            .tensor(self.queries, DType::U32, self.groups * rows * QUERY_NUMBERS)?
            .tensor(out, dtype, rows_count * width)?
            .int(rows_count)?
            .int(heads)?
            .int(dim)?
            .int(rows)?;
        // SAFETY: the arguments match the kernel's parameters. It has blocks for each query, and skips rows
        // that `out` does not have.
        unsafe { call.launch(Grid::of_rows(self.groups * rows, heads * dim)) }
    }
}

/// Returns the results of batches, each `[C * G, H / G * M, D]`, by row: `[R, H * D]`. Every row must belong
/// to one query.
pub fn unpack_heads(batches: &[(HeadBatch<'_>, Tensor)], rows: usize) -> Result<Tensor> {
    let Some((batch, sums)) = batches.first() else { candle_core::bail!("there are no queries") };
    let out = output(gpu(sums)?, &[rows, batch.heads * batch.dim], sums.dtype())?;
    for (batch, sums) in batches {
        batch.unpack(sums, &out)?;
    }
    Ok(out)
}

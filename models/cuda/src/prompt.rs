//! What attention of many queries over the same keys does around its two products: one launch each.

use candle_core::{CudaDevice, DType, Device, Result, Tensor};

use crate::launch::{Call, Grid, PROMPT, output, suffix};

/// Numbers of a query in the table of a batch: its row, or [`NO_ROW`]; the first key of its group that it sees, the end of those, and its
/// own place.
pub const QUERY_NUMBERS: usize = 4;

/// The row of a query that pads its group.
pub const NO_ROW: u32 = u32::MAX;

const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;

/// Keys that a thread of the softmax has at least, where a row has enough for several warps.
const KEYS_MIN: usize = 4;

/// Where queries, keys and values are.
#[derive(Clone, Copy)]
pub struct HeadSource<'a> {
    /// f32 `[R, width]`, of which queries are the first columns.
    pub q: &'a Tensor,
    /// `[.., width]`, f32 or of the type that is packed to.
    pub kv: &'a Tensor,
    /// Elements of `kv` at which the keys and the values of slot 0 begin.
    pub keys_at: usize,
    pub values_at: usize,
    /// How many rows of `kv` from these on are slots.
    pub slots: usize,
}

/// `C` groups with `M` queries each, of `H` heads of which `G` share keys, all of width `D`.
#[derive(Clone, Copy)]
pub struct HeadBatch<'a> {
    /// u32 `[C * M * 4]`, see [`QUERY_NUMBERS`].
    pub queries: &'a Tensor,
    pub groups: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub dim: usize,
}

/// Heads that were brought together.
pub struct PackedHeads {
    /// `[C * G, H / G * M, D]`. Of queries that pad a group nothing is written.
    pub q: Tensor,
    /// Keys and values, each `[C * G, N, D]`, where slots are given.
    pub kv: Option<[Tensor; 2]>,
}

fn gpu(tensor: &Tensor) -> Result<&CudaDevice> {
    match tensor.device() {
        Device::Cuda(device) => Ok(device),
        other => candle_core::bail!("this operation is for GPUs, not {other:?}"),
    }
}

impl HeadBatch<'_> {
    /// `M`.
    fn rows(&self) -> Result<usize> {
        let count = self.queries.elem_count();
        if self.groups == 0 || self.key_heads == 0 || count == 0 || !self.heads.is_multiple_of(self.key_heads)
        {
            candle_core::bail!("{} groups of {} heads have nothing to attend", self.groups, self.heads)
        }
        if !count.is_multiple_of(self.groups * QUERY_NUMBERS) {
            candle_core::bail!("{count} numbers are not those of {} groups of queries", self.groups)
        }
        Ok(count / self.groups / QUERY_NUMBERS)
    }

    /// Queries and, of `slots` u32 `[C * N]`, keys and values by head, in `dtype`.
    pub fn pack(&self, source: HeadSource<'_>, slots: Option<&Tensor>, dtype: DType) -> Result<PackedHeads> {
        let (rows, device) = (self.rows()?, gpu(source.q)?);
        let Self { groups, heads, key_heads, dim, .. } = *self;
        let ((rows_count, q_width), (kv_rows, kv_width)) = (source.q.dims2()?, source.kv.dims2()?);
        let last = (source.slots.max(1) - 1) * kv_width + key_heads * dim;
        if heads * dim > q_width
            || source.slots == 0
            || source.keys_at.max(source.values_at) + last > kv_rows * kv_width
        {
            candle_core::bail!("{heads} and {key_heads} heads of {dim} elements are not in their tensors")
        }
        let keys = slots.map_or(0, Tensor::elem_count);
        if !keys.is_multiple_of(groups) {
            candle_core::bail!("{keys} slots are not those of {groups} groups")
        }
        let q = output(device, &[groups * key_heads, heads / key_heads * rows, dim], dtype)?;
        let packed = || output(device, &[groups * key_heads, keys / groups, dim], dtype);
        let kv = if slots.is_some() { Some([packed()?, packed()?]) } else { None };
        let [packed_keys, packed_values] = [0, 1].map(|index| kv.as_ref().map(|kv| &kv[index]));

        let kernel = format!("pack_heads_{}_{}", suffix(source.kv.dtype())?, suffix(dtype)?);
        let mut call = Call::new(device, &PROMPT, &kernel)?;
        call.tensor(source.q, DType::F32, rows_count * q_width)?
            .tensor(source.kv, source.kv.dtype(), kv_rows * kv_width)?
            .tensor(self.queries, DType::U32, groups * rows * QUERY_NUMBERS)?
            .optional(slots, DType::U32, keys)?
            .tensor(&q, dtype, groups * heads * rows * dim)?
            .optional(packed_keys, dtype, keys * key_heads * dim)?
            .optional(packed_values, dtype, keys * key_heads * dim)?
            .wide(source.keys_at)
            .wide(source.values_at)
            .int(rows_count)?
            .int(source.slots)?
            .int(q_width)?
            .int(kv_width)?
            .int(heads)?
            .int(key_heads)?
            .int(dim)?
            .int(groups)?
            .int(rows)?
            .int(keys / groups)?;
        let blocks = [groups * rows + keys, heads.max(2 * key_heads).div_ceil(WARPS), 1];
        // SAFETY: the arguments are the kernel's. It has a warp for each head of each query and of each key and value; it leaves out
        // rows behind the last and limits slots to those there are, whatever the numbers are, and these are within `q` and `kv`.
        unsafe { call.launch(Grid { blocks, threads: THREADS, shared_bytes: 0 })? };
        Ok(PackedHeads { q, kv })
    }

    /// Softmax weights in `dtype` of scores f32 `[C * G, H / G * M, N]`, which are scaled, and biased by `bias` f32
    /// `[2 * reach + 1, H]` by the distance from query to key. Those of keys that a query does not see are 0, whatever the scores are.
    pub fn weights(
        &self,
        scores: &Tensor,
        scale: f32,
        bias: Option<&Tensor>,
        dtype: DType,
    ) -> Result<Tensor> {
        let (rows, device, keys) = (self.rows()?, gpu(scores)?, scores.dim(2)?);
        let (biases, reach) = match bias.map(Tensor::dims2).transpose()? {
            Some((distances, heads)) if heads == self.heads => {
                (distances * heads, distances.saturating_sub(1) / 2)
            }
            Some((_, heads)) => candle_core::bail!("biases of {heads} heads in place of {}", self.heads),
            None => (0, 0),
        };
        let out = output(device, scores.dims(), dtype)?;
        let count = self.groups * self.heads * rows;
        let mut call = Call::new(device, &PROMPT, &format!("weigh_{}", suffix(dtype)?))?;
        call.tensor(scores, DType::F32, count * keys)?
            .tensor(self.queries, DType::U32, self.groups * rows * QUERY_NUMBERS)?
            .optional(bias, DType::F32, biases)?
            .tensor(&out, dtype, count * keys)?
            .float(scale)
            .int(self.heads)?
            .int(rows)?
            .int(keys)?
            .int(reach)?;
        let threads = keys.div_ceil(KEYS_MIN).next_multiple_of(32).min(THREADS);
        // SAFETY: the arguments are the kernel's; it has a block for each row of scores, whose query is in the table. Of a row it reads
        // and writes only what it has, whatever the query's numbers are; distances are within `reach`.
        unsafe { call.launch(Grid { blocks: [count, 1, 1], threads, shared_bytes: 0 })? };
        Ok(out)
    }

    /// Writes the results `[C * G, H / G * M, D]` of queries to their rows of `out`.
    fn unpack(&self, sums: &Tensor, out: &Tensor) -> Result<()> {
        let (rows, (rows_count, width), dtype) = (self.rows()?, out.dims2()?, out.dtype());
        let (heads, dim) = (self.heads, self.dim);
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
        let blocks = [self.groups * rows, heads.div_ceil(WARPS), 1];
        // SAFETY: the arguments are the kernel's; it has a warp for each head of each query, and leaves out rows that `out` does not have.
        unsafe { call.launch(Grid { blocks, threads: THREADS, shared_bytes: 0 }) }
    }
}

/// The results of batches, each `[C * G, H / G * M, D]`, by row: `[R, H * D]`. Every row is that of one query.
pub fn unpack_heads(batches: &[(HeadBatch<'_>, Tensor)], rows: usize) -> Result<Tensor> {
    let Some((batch, sums)) = batches.first() else { candle_core::bail!("there are no queries") };
    let out = output(gpu(sums)?, &[rows, batch.heads * batch.dim], sums.dtype())?;
    for (batch, sums) in batches {
        batch.unpack(sums, &out)?;
    }
    Ok(out)
}

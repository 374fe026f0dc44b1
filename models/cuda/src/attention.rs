//! Attention of single rows over keys and values in slots of the cache: one launch a layer.

use candle_core::{DType, Device, Result, Tensor};

use crate::launch::{ATTENTION, Call, Grid, output, suffix};

/// Numbers of a table before the slots, for each row: where the slots are that it shares with others, how many these are, where its own
/// are, the first place of both that it sees, the end of those, and its own place.
pub const ROW_NUMBERS: usize = 6;

/// As in the kernel: elements of a head that a thread holds, and threads of a block.
const HELD: usize = 8;
const THREADS: usize = 128;
const WARPS: usize = THREADS / 32;
/// How many query heads that share a key head kernels compute at once; one where heads are no multiple of [`HELD`] elements.
const HEADS: [usize; 4] = [1, 2, 4, 8];

/// Blocks that fill a big GPU: four on each of 132 processors. Fewer rows and heads split their keys.
const BLOCKS: usize = 528;
/// Keys that a block has at least if they are split, and into how many parts at most.
const KEYS_MIN: usize = 256;
const PARTS_MAX: usize = 64;

/// What rows attend to.
pub struct SlotAttention<'a> {
    /// u32: [`ROW_NUMBERS`] of each row, then slots.
    pub table: &'a Tensor,
    pub rows: usize,
    /// The most keys that a row sees.
    pub keys_max: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub scale: f32,
    /// f32 `[2 * reach + 1, H]` or more, by the distance from a query to a key; each is added to scores of its head.
    pub bias: Option<&'a Tensor>,
}

impl SlotAttention<'_> {
    /// `q` f32 `[R, H * D]` to the same in the type of `slab`, `[2 * capacity, G * D]`: keys of all slots, then their values.
    pub fn attend(&self, q: &Tensor, slab: &Tensor) -> Result<Tensor> {
        let (rows, heads, key_heads) = (self.rows, self.heads, self.key_heads);
        let (dtype, (places, width)) = (slab.dtype(), slab.dims2()?);
        let Device::Cuda(device) = q.device() else { candle_core::bail!("this attention is for GPUs") };
        if key_heads == 0 || !heads.is_multiple_of(key_heads) || !width.is_multiple_of(key_heads) {
            candle_core::bail!("{heads} heads cannot share {key_heads} of {width} elements")
        }
        let dim = width / key_heads;
        if dim == 0 || dim > 32 * HELD {
            candle_core::bail!("heads of {dim} elements are not between 1 and {}", 32 * HELD)
        }
        let Some(slots) = self.table.elem_count().checked_sub(rows * ROW_NUMBERS).filter(|slots| *slots > 0)
        else {
            candle_core::bail!("a table of {} numbers has no room for {rows} rows", self.table.elem_count())
        };
        let (biases, reach) = match self.bias.map(Tensor::dims2).transpose()? {
            Some((distances, of_heads)) if of_heads == heads => {
                (distances * heads, distances.saturating_sub(1) / 2)
            }
            Some((_, of_heads)) => candle_core::bail!("biases of {of_heads} heads in place of {heads}"),
            None => (0, 0),
        };
        let out = output(device, &[rows, heads * dim], dtype)?;
        let sharing = heads / key_heads;
        let is_aligned = dim.is_multiple_of(HELD);
        let at_once = HEADS.into_iter().find(|at_once| *at_once >= sharing).unwrap_or(8);
        let at_once = if is_aligned { at_once } else { 1 };
        let columns = key_heads * sharing.div_ceil(at_once);
        let parts = parts(rows * columns, self.keys_max);
        let sums = rows * heads * parts * (dim + 2);
        let sums_of_parts = if parts > 1 { Some(output(device, &[sums], DType::F32)?) } else { None };

        let variant = if is_aligned { at_once.to_string() } else { "any".to_owned() };
        let kernel = format!("attend_{}_{variant}", suffix(dtype)?);
        let mut call = Call::new(device, &ATTENTION, &kernel)?;
        call.tensor(q, DType::F32, rows * heads * dim)?
            .tensor(slab, dtype, places * width)?
            .tensor(self.table, DType::U32, rows * ROW_NUMBERS + slots)?
            .optional(self.bias, DType::F32, biases)?
            .tensor(&out, dtype, rows * heads * dim)?
            .optional(sums_of_parts.as_ref(), DType::F32, sums)?
            .float(self.scale)
            .int(heads)?
            .int(key_heads)?
            .int(dim)?
            .int(places / 2)?
            .int(slots)?
            .int(reach)?
            .int(dim.div_ceil(HELD).next_power_of_two())?;
        let shared_bytes = WARPS * at_once * (dim + 2) * size_of::<f32>();
        // SAFETY: the arguments are the kernel's. It has a block for each row, so reads the table's rows and writes those of `out`; it
        // takes slots from within the table and limits them to the slab's, whatever the numbers are; distances are within `reach`.
        unsafe { call.launch(Grid { blocks: [rows, columns, parts], threads: THREADS, shared_bytes })? };

        if let Some(sums_of_parts) = sums_of_parts {
            let mut call = Call::new(device, &ATTENTION, &format!("add_parts_{}", suffix(dtype)?))?;
            call.tensor(&sums_of_parts, DType::F32, sums)?.tensor(&out, dtype, rows * heads * dim)?;
            call.int(parts)?.int(dim)?;
            // SAFETY: the arguments are the kernel's; it has a block for each row and head of both tensors and a thread for each element.
            unsafe { call.launch(Grid { blocks: [rows, heads, 1], threads: dim, shared_bytes: 0 })? };
        }
        Ok(out)
    }
}

/// Into how many parts the keys of rows are split that would have so many blocks.
fn parts(blocks: usize, keys_max: usize) -> usize {
    BLOCKS.div_ceil(blocks).min(keys_max / KEYS_MIN).clamp(1, PARTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_split_where_rows_and_heads_do_not_fill_a_gpu() {
        assert_eq!(parts(32, 4096), 16, "one row of 32 heads");
        assert_eq!(parts(32, 300), 1, "too few keys to split");
        assert_eq!(parts(32 * 32, 4096), 1, "enough blocks");
        assert_eq!(parts(2, 1 << 20), PARTS_MAX);
    }
}

//! Attention of single rows over keys and values in slots of the cache, in one launch per layer.

use candle_core::{DType, Device, Result, Tensor};

use crate::image::ATTENTION;
use crate::launch::{Call, Grid, cached_suffix, output, reach, suffix};
use crate::reuse::reuse;

/// Number of table entries per row. They precede the slots and consist of:
///
/// 1. the start of the slots that the row shares with others;
/// 2. the number of these slots;
/// 3. the start of its own slots;
/// 4. the index, in both lists together, of the first slot that it sees;
/// 5. the end of the slots that it sees;
/// 6. its own index.
pub const ROW_NUMBERS: usize = 6;

/// Must equal the kernel's constants: elements of a head per thread, and threads per block.
const HELD: usize = 8;
const THREADS: usize = 128;
const WARPS: usize = THREADS / 32;
/// Numbers of query heads sharing a key head that kernels compute together; one if the head size is not a
/// multiple of [`HELD`] elements.
const HEADS: [usize; 4] = [1, 2, 4, 8];

/// Number of multiprocessors of a large GPU. If rows and heads do not fill them with blocks, their keys are
/// split.
const MULTIPROCESSORS: usize = 132;
/// Minimum number of keys per block if they are split.
pub const KEYS_OF_A_PART: usize = 256;
/// Maximum number of parts.
const PARTS_MAX: usize = 64;

/// The keys and values that rows attend to.
pub struct SlotAttention<'a> {
    /// u32: [`ROW_NUMBERS`] entries per row, then slots.
    pub table: &'a Tensor,
    pub rows: usize,
    /// Maximum number of keys that a row sees.
    pub keys_max: usize,
    pub heads: usize,
    pub num_kv_heads: usize,
    pub scale: f32,
    /// Scaled scores `s` become `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
    /// f32 `[H, 2 * reach + 1]`, by the distance from a query to a key. Each bias is added to scores
    /// of its head.
    pub bias: Option<&'a Tensor>,
}

impl SlotAttention<'_> {
    /// Computes the attention of `q` f32 `[R, H * D]` to `slab` `[2 * capacity, G * D]`: keys of all slots,
    /// then their values, in `dtype` or fp8. Returns the shape of `q` in `dtype`.
    pub fn attend(&self, q: &Tensor, slab: &Tensor, dtype: DType) -> Result<Tensor> {
        let rows = self.rows;
        let heads = self.heads;
        let num_kv_heads = self.num_kv_heads;
        let (places, width) = slab.dims2()?;
        let Device::Cuda(device) = q.device() else { candle_core::bail!("this attention is for GPUs") };
        if num_kv_heads == 0 || !heads.is_multiple_of(num_kv_heads) || !width.is_multiple_of(num_kv_heads) {
            candle_core::bail!("{heads} heads cannot share {num_kv_heads} of {width} elements")
        }
        let dim = width / num_kv_heads;
        if dim == 0 || dim > 32 * HELD {
            candle_core::bail!("heads of {dim} elements are not between 1 and {}", 32 * HELD)
        }
        let Some(slots) = self.table.elem_count().checked_sub(rows * ROW_NUMBERS).filter(|slots| *slots > 0)
        else {
            candle_core::bail!("a table of {} numbers is too small for {rows} rows", self.table.elem_count())
        };
        let (biases, reach) = reach(self.bias, heads)?;
        let out = output(device, &[rows, heads * dim], dtype)?;
        let sharing = heads / num_kv_heads;
        let is_aligned = dim.is_multiple_of(HELD);
        let at_once = HEADS.into_iter().find(|at_once| *at_once >= sharing).unwrap_or(8);
        let at_once = if is_aligned { at_once } else { 1 };
        let columns = num_kv_heads * sharing.div_ceil(at_once);
        let parts = parts(rows * columns, self.keys_max, at_once);
        let sums = rows * heads * parts * (dim + 2);
        let sums_of_parts = if parts > 1 { Some(output(device, &[sums], DType::F32)?) } else { None };

        let variant = if is_aligned { at_once.to_string() } else { "any".to_owned() };
        let kernel = match slab.dtype() {
            cached if cached == dtype => format!("attend_{}_{variant}", suffix(dtype)?),
            cached => format!("attend_{}_{}_{variant}", cached_suffix(cached)?, suffix(dtype)?),
        };
        let mut call = Call::new(device, &ATTENTION, &kernel)?;
        call.tensor(q, DType::F32, rows * heads * dim)?
            .tensor(slab, slab.dtype(), places * width)?
            .tensor(self.table, DType::U32, rows * ROW_NUMBERS + slots)?
            .optional(self.bias, DType::F32, biases)?
            .tensor(&out, dtype, rows * heads * dim)?
            .optional(sums_of_parts.as_ref(), DType::F32, sums)?
            .float(self.scale)
            .float(self.cap.unwrap_or(0.0))
            .int(heads)?
            .int(num_kv_heads)?
            .int(dim)?
            .int(places / 2)?
            .int(slots)?
            .int(reach)?
            .int(dim.div_ceil(HELD).next_power_of_two())?;
        let shared_bytes = WARPS * at_once * (dim + 2) * size_of::<f32>();
        // SAFETY: the arguments match the kernel's parameters. It has one block per row, so it reads the
        // table's rows and writes the rows of `out`. It reads slots from within the table and clamps them to
        // the slab, regardless of their values; distances are within `reach`.
        unsafe { call.launch(Grid { blocks: [rows, columns, parts], threads: THREADS, shared_bytes })? };

        if let Some(sums_of_parts) = sums_of_parts {
            let mut call = Call::new(device, &ATTENTION, &format!("add_parts_{}", suffix(dtype)?))?;
            call.tensor(&sums_of_parts, DType::F32, sums)?.tensor(&out, dtype, rows * heads * dim)?;
            call.int(parts)?.int(dim)?;
            // SAFETY: the arguments match the kernel's parameters. It has one block for each row and head of
            // both tensors, and one thread per element.
            unsafe { call.launch(Grid { blocks: [rows, heads, 1], threads: dim, shared_bytes: 0 })? };
            reuse(&sums_of_parts);
        }
        Ok(out)
    }
}

/// Returns how many blocks run on a multiprocessor together. `scripts/kernel-registers` checks that their
/// registers allow it.
fn fitting(at_once: usize) -> usize {
    match at_once {
        8 => 2,
        4 => 3,
        _ => 4,
    }
}

/// Returns the number of parts into which the keys of rows are split, given the number of blocks without
/// splitting, and the number of heads that a block computes.
fn parts(blocks: usize, keys_max: usize, at_once: usize) -> usize {
    let filling = MULTIPROCESSORS * fitting(at_once);
    filling.div_ceil(blocks).min(keys_max / KEYS_OF_A_PART).clamp(1, PARTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_split_if_rows_and_heads_do_not_fill_a_gpu() {
        assert_eq!(parts(32, 4096, 1), 16, "one row of 32 heads");
        assert_eq!(parts(32, 300, 1), 1, "too few keys to split");
        assert_eq!(parts(32 * 32, 4096, 1), 1, "enough blocks");
        assert_eq!(parts(2, 1 << 20, 1), PARTS_MAX);
        let of_a_row =
            [(32, 1), (16, 2), (8, 4), (4, 8)].map(|(blocks, at_once)| parts(blocks, 1 << 20, at_once));
        assert_eq!(
            of_a_row,
            [17, 33, 50, 64],
            "blocks that compute more heads are fewer, and fewer run together"
        );
    }
}

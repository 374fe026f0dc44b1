//! Summarises logits that stay on the GPU, in one launch.

use candle_core::{DType, Device, Result, Tensor};

use crate::image::LOGITS;
use crate::launch::{Call, Grid, output, suffix};

/// Number of elements in the summary of a row.
pub const SUMMARY: usize = 4;

/// Must equal the kernel's constant.
const THREADS: usize = 512;

/// Summarises each row of logits `[R, V]`. Returns f32 `[R, 4]`:
///
/// 1. the largest logit;
/// 2. the sum of `exp(logit - largest)` over all ids;
/// 3. the largest logit of the ids before `tokens`;
/// 4. the number of ids before `tokens`, starting at the first occurrence of that logit.
///
/// The sum is NaN if a logit is NaN or infinite, or if all logits are minus infinity.
pub fn summarize(logits: &Tensor, tokens: usize) -> Result<Tensor> {
    let ((rows, vocab), dtype) = (logits.dims2()?, logits.dtype());
    let Device::Cuda(device) = logits.device() else { candle_core::bail!("this operation is for GPUs") };
    if vocab == 0 {
        candle_core::bail!("no logits have no largest one")
    }
    let out = output(device, &[rows, SUMMARY], DType::F32)?;
    let mut call = Call::new(device, &LOGITS, &format!("summarize_{}", suffix(dtype)?))?;
    call.tensor(logits, dtype, rows * vocab)?.tensor(&out, DType::F32, rows * SUMMARY)?;
    call.int(vocab)?.int(tokens)?;
    // SAFETY: the arguments match the kernel's parameters. It has one block for each row of both tensors.
    unsafe { call.launch(Grid { blocks: [rows, 1, 1], threads: THREADS, shared_bytes: 0 })? };
    Ok(out)
}

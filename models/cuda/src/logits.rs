//! What a step needs of logits that stay on the GPU: one launch.

use candle_core::{DType, Device, Result, Tensor};

use crate::launch::{Call, Grid, LOGITS, output, suffix};

/// Elements of a row's summary.
pub const SUMMARY: usize = 5;

/// As in the kernel.
const THREADS: usize = 512;

/// Of each row of logits `[R, V]` f32 `[R, 5]`: the largest logit, the sums of `exp(logit - largest)` of all ids and of those from `tokens`
/// on, the largest logit of the ids before, and how many of these there are from its first place on. The sums are NaN where a logit is
/// NaN or infinite, and where all are minus infinity.
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
    // SAFETY: the arguments are the kernel's; it has a block for each row of both tensors.
    unsafe { call.launch(Grid { blocks: [rows, 1, 1], threads: THREADS, shared_bytes: 0 })? };
    Ok(out)
}

//! Selects the tensors that the CPU kernels support, and accesses their elements as plain slices.

use candle_core::{DType, Device, Layout, Result, Storage, Tensor, WithDType};
use ntl_core::contract::ModelError;
use ntl_text::checkpoint::LoadError;

pub(crate) type ModelResult<T> = std::result::Result<T, ModelError>;

pub(crate) fn compute_error(error: candle_core::Error) -> ModelError {
    ModelError::Compute(Box::new(without_backtrace(error)))
}

/// The error of an operation on the weights of a model while it is loaded.
pub(crate) fn device_error(error: candle_core::Error) -> LoadError {
    let message = without_backtrace(error).to_string();
    let hint = if message.contains("OUT_OF_MEMORY") {
        "; the model needs a GPU with more free memory, or a smaller --dtype"
    } else {
        ""
    };
    LoadError::device(message + hint)
}

/// Returns the error itself: with `RUST_BACKTRACE`, candle appends a backtrace to messages.
pub(crate) fn without_backtrace(error: candle_core::Error) -> candle_core::Error {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => without_backtrace(*inner),
        error => error,
    }
}

/// Returns whether the kernels of `ntl-kernels` compute with this tensor: f32 on the CPU.
pub(crate) fn uses_kernels(tensor: &Tensor) -> bool {
    kernels_compute(tensor.device(), tensor.dtype())
}

/// Like [`uses_kernels`], for tensors of this type on a device.
pub(super) fn kernels_compute(device: &Device, dtype: DType) -> bool {
    #[cfg(test)]
    if composed::is_on() {
        return false;
    }
    device.is_cpu() && dtype == DType::F32
}

/// Returns whether a tensor is a placeholder for weights that are not read: one element, broadcast to the
/// full shape.
pub(crate) fn is_placeholder(tensor: &Tensor) -> bool {
    tensor.stride().iter().all(|&stride| stride == 0)
}

/// Returns the elements of a contiguous f32 CPU tensor.
pub(super) fn slice<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [f32]> {
    slice_of(storage, layout)
}

/// Returns the elements of a contiguous CPU tensor of this type.
pub(super) fn slice_of<'a, E: WithDType>(storage: &'a Storage, layout: &Layout) -> Result<&'a [E]> {
    let (Storage::Cpu(values), Some((from, to))) = (storage, layout.contiguous_offsets()) else {
        candle_core::bail!("expected a contiguous tensor on the CPU")
    };
    Ok(&E::cpu_storage_as_slice(values)?[from..to])
}

/// Returns a copy of the elements of a contiguous f32 CPU tensor.
pub(super) fn to_vec(tensor: &Tensor) -> Result<Vec<f32>> {
    let (storage, layout) = tensor.storage_and_layout();
    slice(&storage, layout).map(<[f32]>::to_vec)
}

/// Multiplies matrices. candle has no bf16 matmul on the CPU; only tests need one there.
pub(super) fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.device().is_cpu() && a.dtype() == DType::BF16 {
        return a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?.to_dtype(DType::BF16);
    }
    a.matmul(b)
}

/// Returns the product of `a` `[.., M, K]` and the transpose of `b` `[.., N, K]`, contiguous and of one type,
/// as f32: sums are not rounded.
pub(super) fn wide_product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if a.device().is_cuda() {
        return ntl_cuda::product(a, b);
    }
    a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?.t()?)
}

/// Adds `factor` times the same product to `sum`, f32 and contiguous; in place if the device supports it.
pub(super) fn add_product(sum: Tensor, a: &Tensor, b: &Tensor, factor: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if a.device().is_cuda() {
        return ntl_cuda::add_product(&sum, a, b, factor as f32).map(|()| sum);
    }
    let product = wide_product(a, b)?;
    sum + if (factor - 1.0).abs() > f64::EPSILON { (product * factor)? } else { product }
}

/// Adds `y` f32 `[M, N]`, or the same row `[N]` for all, to `x` f32 `[M, N]`, whose storage no other tensor may share: a GPU
/// adds in place.
pub(crate) fn add(x: Tensor, y: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::own_kernels::OwnKernel::Addition.computes(&x) {
        return ntl_cuda::add(&x, y).map(|()| x);
    }
    x.broadcast_add(y)
}

/// Runs the device composition on the CPU, so that its tests need no device.
#[cfg(test)]
pub(crate) mod composed {
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_on() -> bool {
        ON.get()
    }

    /// Calls `run` with all operations of this thread composed of candle's operations.
    pub(crate) fn during<T>(run: impl FnOnce() -> T) -> T {
        ON.set(true);
        let result = run();
        ON.set(false);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::backtrace::Backtrace;

    use super::*;

    #[test]
    fn a_full_gpu_is_reported_in_one_line_without_a_backtrace() {
        let inner = Box::new(candle_core::Error::Msg("CUDA_ERROR_OUT_OF_MEMORY".to_owned()));
        let backtrace = Box::new(Backtrace::force_capture());
        let error = device_error(candle_core::Error::WithBacktrace { inner, backtrace });
        assert_eq!(
            error.to_string(),
            "device: CUDA_ERROR_OUT_OF_MEMORY; the model needs a GPU with more free memory, or a smaller --dtype"
        );
    }
}

//! Finds and opens GPUs, and measures how long the host waits for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use ntl_text::checkpoint::LoadError;

/// Returns the number of GPUs. The error says why the driver cannot be queried: the program was built without
/// CUDA, or there is no driver, or the driver is too old.
#[cfg(feature = "cuda")]
pub(crate) fn count() -> Result<usize, String> {
    use candle_core::cuda::cudarc::driver::CudaContext;
    use candle_core::cuda::cudarc::driver::sys::CUresult as Code;

    match CudaContext::device_count() {
        Ok(count) => ntl_cuda::check_driver().map(|()| count.max(0) as usize),
        Err(error) => match error.0 {
            Code::CUDA_ERROR_NO_DEVICE => Ok(0),
            Code::CUDA_ERROR_STUB_LIBRARY => {
                Err("there is no NVIDIA driver: the libcuda.so.1 that was found is a stub to build with"
                    .to_owned())
            }
            Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                Err(format!("the NVIDIA driver does not fit this program's CUDA: {error}"))
            }
            _ => Err(format!("the NVIDIA driver cannot be started: {error}")),
        },
    }
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn count() -> Result<usize, String> {
    Err("this program was built without CUDA; use `--device cpu`, or build it with `--features cuda`"
        .to_owned())
}

/// Opens a GPU. GPUs are numbered from 0, as in `nvidia-smi`. Runs one kernel, so that opening fails if this
/// program has no kernels for the GPU.
pub(crate) fn open(number: usize) -> Result<Device, LoadError> {
    let unusable = |reason| LoadError::Device(format!("GPU {number} cannot be used: {reason}"));
    check(number).map_err(unusable)?;
    let device = opened(number).map_err(unusable)?;
    run_kernel(&device)
        .map_err(|error| unusable(format!("it runs none of this program's kernels: {error}")))?;
    Ok(device)
}

/// Fails if there is no GPU with this number.
fn check(number: usize) -> Result<(), String> {
    let count = count()?;
    if number >= count {
        let there = match count {
            0 => "the driver finds none".to_owned(),
            1 => "there is one, number 0".to_owned(),
            _ => format!("there are {count}, from 0"),
        };
        return Err(there);
    }
    Ok(())
}

#[cfg(feature = "cuda")]
fn opened(number: usize) -> Result<Device, String> {
    let device = ntl_cuda::ordinal(number).map_err(|error| error.to_string())?;
    // CUDA graphs cannot record the default stream.
    let device = Device::new_cuda_with_stream(device).map_err(|error| error.to_string())?;
    if let Device::Cuda(cuda) = &device {
        if let Err(error) = ntl_cuda::prepare(cuda) {
            tracing::warn!(number, %error, "the GPU gives freed memory back to its driver, which costs time");
        }
        if let Ok(capability) = ntl_cuda::ComputeCapability::of(cuda) {
            let machine_code = capability.has_machine_code();
            tracing::info!(number, %capability, machine_code, "GPU opened");
        }
    }
    Ok(device)
}

#[cfg(not(feature = "cuda"))]
fn opened(number: usize) -> Result<Device, String> {
    Device::new_cuda(number).map_err(|error| error.to_string())
}

/// Binds the CUDA context of a model's device to the thread that drops the model. The driver frees memory
/// only in a context, and a thread that has computed nothing has none. Must be declared before all fields
/// with tensors, because fields are dropped in the order of their declarations.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU has no contexts"))]
pub(crate) struct ContextOnDrop(Device);

impl ContextOnDrop {
    pub(crate) fn new(device: &Device) -> Self {
        Self(device.clone())
    }
}

#[cfg(feature = "cuda")]
impl Drop for ContextOnDrop {
    fn drop(&mut self) {
        if let Device::Cuda(device) = &self.0
            && let Err(error) = device.cuda_stream().context().bind_to_thread()
        {
            tracing::warn!(%error, "the memory of a model on a GPU cannot be freed");
        }
    }
}

/// Nanoseconds that this process has waited for logits of GPUs.
static WAITED: AtomicU64 = AtomicU64::new(0);

/// Returns the time that this process has waited for logits of GPUs. In the rest of a step, the host enqueues
/// the work.
pub fn gpu_wait() -> Duration {
    Duration::from_nanos(WAITED.load(Ordering::Relaxed))
}

/// Number of steps that this process has replayed.
static REPLAYED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of steps whose layers this process has replayed as a CUDA graph.
pub fn replayed_steps() -> u64 {
    REPLAYED.load(Ordering::Relaxed)
}

#[cfg(feature = "cuda")]
pub(crate) fn count_replay() {
    REPLAYED.fetch_add(1, Ordering::Relaxed);
}

/// Calls `wait`, which waits for a GPU, and counts its time.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = wait();
    WAITED.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result
}

/// Runs a kernel on a device and waits for it.
fn run_kernel(device: &Device) -> candle_core::Result<()> {
    (Tensor::ones((), DType::F32, device)? + 1.0)?.to_scalar::<f32>().map(drop)
}

/// Fails if a device cannot compute any more. A device that is only out of memory can.
#[cfg(feature = "cuda")]
pub(crate) fn check_computes(device: &Device) -> candle_core::Result<()> {
    device.synchronize()?;
    match run_kernel(device) {
        Err(error) if error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY") => Ok(()),
        result => result,
    }
}

/// Free memory of a GPU, in bytes, or `None` if there is no such GPU.
#[cfg(feature = "cuda")]
pub(crate) fn free_bytes(number: usize) -> Option<u64> {
    check(number).ok()?;
    ntl_cuda::ordinal(number).and_then(ntl_cuda::free_bytes).ok().map(|free| free as u64)
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn free_bytes(_number: usize) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_cannot_be_used_is_named_with_the_reason() {
        let error = open(99).unwrap_err().to_string();
        assert!(error.contains("GPU 99 cannot be used: "), "{error}");
        #[cfg(not(feature = "cuda"))]
        assert!(error.contains("built without CUDA"), "{error}");
        assert_eq!(free_bytes(99), None);
    }

    #[test]
    fn a_device_that_computes_is_accepted() {
        run_kernel(&Device::Cpu).unwrap();
    }
}

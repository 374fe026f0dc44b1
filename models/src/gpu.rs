//! Finding and opening GPUs.

use candle_core::Device;

use crate::checkpoint::LoadError;

/// The number of GPUs. The error says why the driver cannot be asked: this program is built without CUDA, or there is no driver,
/// or the driver is too old.
#[cfg(feature = "cuda")]
pub(crate) fn count() -> Result<usize, String> {
    use candle_core::cuda::cudarc::driver::CudaContext;
    use candle_core::cuda::cudarc::driver::sys::CUresult as Code;

    match CudaContext::device_count() {
        Ok(count) => Ok(count.max(0) as usize),
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

/// GPUs are numbered from 0.
pub(crate) fn open(number: usize) -> Result<Device, LoadError> {
    let unusable = |reason| LoadError::Device(format!("GPU {number} cannot be used: {reason}"));
    let count = count().map_err(unusable)?;
    if number >= count {
        let there = match count {
            0 => "the driver finds none".to_owned(),
            1 => "there is one, number 0".to_owned(),
            _ => format!("there are {count}, from 0"),
        };
        return Err(unusable(there));
    }
    Device::new_cuda(number).map_err(|error| unusable(error.to_string()))
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
    }
}

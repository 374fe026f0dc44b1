//! Applies the choice between this program's kernels and candle's operations on a GPU.

use candle_core::{DType, Device};
use ntl_text::checkpoint::LoadError;
use ntl_text::load_options::KernelChoice;

#[cfg(feature = "cuda")]
use crate::ops::own_kernels::OwnKernel;

/// Applies the choice to an opened GPU, elements of type `dtype`, and keys and values of type `kv`.
///
/// # Errors
/// If a kernel breaks the GPU, or if keys and values are fp8, which candle's operations do not support,
/// and a kernel for them is off.
#[cfg(feature = "cuda")]
pub(crate) fn apply(choice: KernelChoice, device: &Device, dtype: DType, kv: DType) -> Result<(), LoadError> {
    match choice {
        KernelChoice::Own => {}
        KernelChoice::Composed => OwnKernel::ALL.into_iter().for_each(OwnKernel::turn_off),
        KernelChoice::Auto => crate::kernel_check::check(device, dtype, kv)
            .map_err(|reason| LoadError::Device(format!("the GPU cannot be used: {reason}")))?,
    }
    match OwnKernel::OF_CACHE.into_iter().find(|kernel| kernel.is_off()) {
        Some(kernel) if kv == DType::F8E4M3 => Err(LoadError::Device(format!(
            "--kv-cache-dtype fp8 needs the kernel {}, which is off",
            kernel.name()
        ))),
        _ => Ok(()),
    }
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn apply(_: KernelChoice, _: &Device, _: DType, _: DType) -> Result<(), LoadError> {
    Ok(())
}

/// Returns the names of this program's kernels for GPUs, and whether they are turned off.
pub fn kernels_off() -> Vec<(&'static str, bool)> {
    #[cfg(feature = "cuda")]
    return OwnKernel::ALL.into_iter().map(|kernel| (kernel.name(), kernel.is_off())).collect();
    #[cfg(not(feature = "cuda"))]
    Vec::new()
}

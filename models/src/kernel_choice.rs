//! The choice between this program's kernels and candle's operations on a GPU.

use std::str::FromStr;

use candle_core::{DType, Device};
use ntl_text::checkpoint::LoadError;

#[cfg(feature = "cuda")]
use crate::ops::own_kernels::OwnKernel;

/// Which kernels compute on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// This program's kernels, except those that give wrong results in a check before models are loaded.
    #[default]
    Auto,
    /// This program's kernels, without a check.
    Own,
    /// Only candle's operations, which are slower.
    Composed,
}

impl KernelChoice {
    pub const ALL: [Self; 3] = [Self::Auto, Self::Own, Self::Composed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Own => "own",
            Self::Composed => "composed",
        }
    }

    /// Applies the choice to an opened GPU, elements of type `dtype`, and keys and values of type `kv`.
    ///
    /// # Errors
    /// If a kernel breaks the GPU, or if keys and values are fp8, which candle's operations do not support,
    /// and a kernel for them is off.
    #[cfg(feature = "cuda")]
    pub(crate) fn apply(self, device: &Device, dtype: DType, kv: DType) -> Result<(), LoadError> {
        match self {
            Self::Own => {}
            Self::Composed => OwnKernel::ALL.into_iter().for_each(OwnKernel::turn_off),
            Self::Auto => crate::kernel_check::check(device, dtype, kv)
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
    pub(crate) fn apply(self, _: &Device, _: DType, _: DType) -> Result<(), LoadError> {
        Ok(())
    }
}

impl FromStr for KernelChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let choice = Self::ALL.into_iter().find(|choice| choice.name() == name);
        choice.ok_or_else(|| format!("`{name}` is none of auto, own, composed"))
    }
}

/// Returns the names of this program's kernels for GPUs, and whether they are turned off.
pub fn kernels_off() -> Vec<(&'static str, bool)> {
    #[cfg(feature = "cuda")]
    return OwnKernel::ALL.into_iter().map(|kernel| (kernel.name(), kernel.is_off())).collect();
    #[cfg(not(feature = "cuda"))]
    Vec::new()
}

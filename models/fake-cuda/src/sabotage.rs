//! Deliberate faults, to show that tests detect them: `NTL_FAKE_CUDA_BREAK` is `stride`, `kernel` or
//! `pointer`.

use crate::product::Product;
use crate::ptx::Kernel;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// The stride of one operand of batched matmuls is one element too large.
    Stride,
    /// Kernels that add are missing.
    Kernel,
    /// The last pointer of each kernel points one page too far.
    Pointer,
}

impl Sabotage {
    pub(crate) fn from_environment() -> Option<Self> {
        match std::env::var("NTL_FAKE_CUDA_BREAK").ok()?.as_str() {
            "stride" => Some(Self::Stride),
            "kernel" => Some(Self::Kernel),
            "pointer" => Some(Self::Pointer),
            _ => None,
        }
    }

    /// Returns the matmul that is computed instead of `product`.
    pub(crate) fn product(self, product: &Product) -> Product {
        let mut product = *product;
        if self == Self::Stride {
            product.b.stride += 1;
        }
        product
    }

    pub(crate) fn hides(self, kernel: &str) -> bool {
        self == Self::Kernel && kernel.starts_with("badd_")
    }

    /// Changes the parameters of a launch.
    pub(crate) fn parameters(self, kernel: &Kernel, parameters: &mut [Vec<u8>]) {
        const PAGE: usize = 4096;
        let last = kernel.pointers().last().filter(|_| self == Self::Pointer);
        let Some(parameter) = last.and_then(|index| parameters.get_mut(index)) else { return };
        if let Ok(bytes) = <[u8; 8]>::try_from(parameter.as_slice()) {
            *parameter = (usize::from_le_bytes(bytes) + PAGE).to_le_bytes().to_vec();
        }
    }
}

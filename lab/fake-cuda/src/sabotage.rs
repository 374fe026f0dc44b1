//! Deliberate faults, to show that tests and programs detect them: `NTL_FAKE_CUDA_BREAK` is `stride`,
//! `kernel`, `pointer`, `graph`, `wrong:PREFIX`, `hide:PREFIX`, or `address:FILE`, `misaligned:FILE`,
//! `launch:FILE` or `ecc:FILE`.

use std::path::PathBuf;

use crate::fault::{Code, Fault};
use crate::product::Product;
use crate::ptx::Kernel;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// The stride of one operand of batched matmuls is one element too large.
    Stride,
    /// The last pointer of each kernel points one page too far.
    Pointer,
    /// A replay of a graph leaves out the first node.
    Graph,
    /// Kernels whose names start with this are missing.
    Hide(String),
    /// Kernels whose names start with this write wrong numbers.
    Wrong(String),
    /// Kernels break the context with this error once this file exists.
    Broken(Code, PathBuf),
}

impl Sabotage {
    pub(crate) fn from_environment() -> Option<Self> {
        let value = std::env::var("NTL_FAKE_CUDA_BREAK").ok()?;
        match value.split_once(':').unwrap_or((&value, "")) {
            ("stride", "") => Some(Self::Stride),
            ("pointer", "") => Some(Self::Pointer),
            ("graph", "") => Some(Self::Graph),
            // candle's kernels that select rows.
            ("kernel", "") => Some(Self::Hide("is_u32_".to_owned())),
            ("hide", prefix) => Some(Self::Hide(prefix.to_owned())),
            ("wrong", prefix) => Some(Self::Wrong(prefix.to_owned())),
            ("address", file) => Some(Self::Broken(Code::IllegalAddress, file.into())),
            ("misaligned", file) => Some(Self::Broken(Code::MisalignedAddress, file.into())),
            ("launch", file) => Some(Self::Broken(Code::LaunchFailed, file.into())),
            ("ecc", file) => Some(Self::Broken(Code::EccUncorrectable, file.into())),
            _ => None,
        }
    }

    /// Returns the matmul that is computed instead of `product`.
    pub(crate) fn product(&self, product: &Product) -> Product {
        let mut product = *product;
        if *self == Self::Stride {
            product.b.stride += 1;
        }
        product
    }

    pub(crate) fn hides(&self, kernel: &str) -> bool {
        matches!(self, Self::Hide(prefix) if kernel.starts_with(prefix.as_str()))
    }

    pub(crate) fn falsifies(&self, kernel: &str) -> bool {
        matches!(self, Self::Wrong(prefix) if kernel.starts_with(prefix.as_str()))
    }

    /// Fails if a kernel breaks the context now.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match self {
            Self::Broken(code, file) if file.exists() => {
                Err(Fault::new(*code, "the context is broken (deliberate fault)"))
            }
            _ => Ok(()),
        }
    }

    /// Changes the parameters of a launch.
    pub(crate) fn parameters(&self, kernel: &Kernel, parameters: &mut [Vec<u8>]) {
        const PAGE: usize = 4096;
        if *self != Self::Pointer {
            return;
        }
        let last = kernel.pointers().last();
        let Some(parameter) = last.and_then(|index| parameters.get_mut(index)) else { return };
        if let Ok(bytes) = <[u8; 8]>::try_from(parameter.as_slice()) {
            *parameter = (usize::from_le_bytes(bytes) + PAGE).to_le_bytes().to_vec();
        }
    }
}

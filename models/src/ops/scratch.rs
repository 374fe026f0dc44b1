//! Intermediate results.

use std::ops::Deref;

use candle_core::Tensor;

/// An intermediate result. Nothing reads the tensor, or a view of it, after this value is dropped: later
/// results of the same step on a GPU reuse its memory.
pub(crate) struct Scratch(pub(crate) Tensor);

impl Deref for Scratch {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

#[cfg(feature = "cuda")]
impl Drop for Scratch {
    fn drop(&mut self) {
        ntl_cuda::reuse(&self.0);
    }
}

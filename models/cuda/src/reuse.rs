//! Reuses the memory of a step's intermediate results. Every layer computes tensors of the same sizes, and
//! each would otherwise be allocated and freed by its own calls of the driver.

use std::cell::RefCell;
use std::marker::PhantomData;

use candle_core::{CudaDevice, DType, Device, Result, Tensor};

/// The results of the present step.
#[derive(Default)]
pub(crate) struct Results {
    /// Tensors that kernels have written and that may still be read.
    in_use: Vec<Tensor>,
    /// Tensors that are not read any more.
    free: Vec<Tensor>,
    /// Whether each result must use memory of earlier ones.
    is_complete: bool,
}

impl Results {
    /// Returns the memory of all results, for the same results again.
    pub(crate) fn again(self) -> Self {
        Self { in_use: Vec::new(), free: [self.in_use, self.free].concat(), is_complete: true }
    }
}

thread_local! {
    /// `None` between steps.
    static RESULTS: RefCell<Option<Results>> = const { RefCell::new(None) };
}

/// A step of this thread. Its results share memory as far as [`reuse`] allows, until the step is dropped.
pub struct Step(PhantomData<*const ()>);

impl Step {
    pub fn begin() -> Self {
        RESULTS.set(Some(Results::default()));
        Self(PhantomData)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        RESULTS.set(None);
    }
}

/// Calls `work`, whose results use this memory instead of the step's. Returns its value, and its results.
pub(crate) fn with_results<T>(results: Results, work: impl FnOnce() -> T) -> (T, Results) {
    let of_step = RESULTS.replace(Some(results));
    let value = work();
    (value, RESULTS.replace(of_step).unwrap_or_default())
}

/// Lets later results of the same step use the memory of a kernel's result. Nothing may read the tensor, or a
/// view of it, any more. Has no effect on other tensors and between steps.
pub fn reuse(tensor: &Tensor) {
    RESULTS.with_borrow_mut(|results| {
        let Some(Results { in_use, free, .. }) = results else { return };
        if let Some(index) = in_use.iter().position(|result| result.id() == tensor.id()) {
            free.push(in_use.swap_remove(index));
        }
    });
}

/// Returns a tensor with arbitrary elements, in free memory of the step if there is some of this size.
pub(crate) fn uninitialised(device: &CudaDevice, shape: &[usize], dtype: DType) -> Result<Tensor> {
    RESULTS.with_borrow_mut(|results| {
        let count: usize = shape.iter().product();
        let free = results.as_mut().and_then(|results| {
            let index = results.free.iter().position(|free| {
                let is_here = matches!(free.device(), Device::Cuda(other) if other.id() == device.id());
                is_here && free.dtype() == dtype && free.elem_count() == count
            })?;
            Some(results.free.swap_remove(index))
        });
        let tensor = match free {
            Some(tensor) => tensor.reshape(shape)?,
            None if results.as_ref().is_some_and(|results| results.is_complete) => {
                candle_core::bail!("a result of {shape:?} {dtype:?} that was not there before")
            }
            // SAFETY: nothing reads the tensor before the next kernel has written every element.
            None => unsafe { Tensor::empty(shape, dtype, &Device::Cuda(device.clone()))? },
        };
        if let Some(results) = results {
            results.in_use.push(tensor.clone());
        }
        Ok(tensor)
    })
}

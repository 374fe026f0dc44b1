//! The GPU's time between two events.

use std::time::Duration;

use candle_core::cuda::cudarc::driver::{CudaEvent, DriverError, sys};

unsafe extern "C" {
    /// The first version of the function. cudarc calls the second one, which drivers before CUDA 12.8 lack.
    /// With them, a program that refers to it ends while it is loaded, before `check_driver` can give the
    /// reason.
    fn cuEventElapsedTime(milliseconds: *mut f32, start: sys::CUevent, end: sys::CUevent) -> sys::CUresult;
}

/// Waits for two events of one context, and returns the time from one to the other.
pub fn elapsed(start: &CudaEvent, end: &CudaEvent) -> Result<Duration, DriverError> {
    start.context().bind_to_thread()?;
    end.synchronize()?;
    let mut milliseconds = 0.0;
    // SAFETY: both events exist, and the driver writes one number.
    unsafe { cuEventElapsedTime(&raw mut milliseconds, start.cu_event(), end.cu_event()) }.result()?;
    Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
}

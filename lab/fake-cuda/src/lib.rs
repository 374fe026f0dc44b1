//! A CUDA driver, cuBLAS and cuRAND without a GPU, for tests: the real host code of candle and cudarc runs on
//! it.
//!
//! * Memory is host memory, with a table of allocations. Kernels, matmuls and copies are checked against the
//!   table. A kernel or a download fails if it reads memory that nothing has written.
//! * Kernels are the PTX of the program, run by an interpreter, so that the tests cover the shipped code. An
//!   image with machine code must also contain PTX, which runs.
//! * cuBLAS matmuls are plain loops.
//! * A CUDA graph does the work again that a stream has recorded, from all threads that used it. Calls that
//!   cannot be recorded fail.
//! * Launches, uploads, allocations and other calls are counted, for tests to read (`counts`).
//!
//! Work is done when the host waits for it. A fault prints a line on stderr with the reason, and the call
//! that waits returns an error. After a fault of a kernel, a matmul or a copy, all calls fail, as on a
//! device. With `NTL_FAKE_CUDA_NUMERICS=off` kernels and matmuls are checked and counted but not computed.
//! `NTL_FAKE_CUDA_MEMORY` sets the memory of the device in bytes, and `NTL_FAKE_CUDA_VERSION` the driver's
//! version, such as 12040, and `NTL_FAKE_CUDA_CAPABILITY` the compute capability, such as 89. As a shared
//! library it replaces `libcuda.so.1`, `libcublas.so.13` and `libcurand.so.10` together
//! (`lab/fake-cuda/check`). It does not model time, concurrent streams, several devices, or the order of
//! additions in a device's matmuls and reductions.

#![expect(unsafe_code, reason = "device memory consists of addresses, and the interface is C")]

mod api;
mod counts;
mod driver;
mod fatbin;
mod fault;
mod graph;
mod memory;
mod product;
mod ptx;
mod sabotage;
mod written;

pub use counts::{Counts, Total};
pub use driver::{Driver, driver};
pub use fault::{Code, Fault};
pub use graph::NodeKind;
pub use memory::Memory;
pub use product::{Matrix, Product, Scalar};
pub use ptx::{Kernel, Launch, Module};

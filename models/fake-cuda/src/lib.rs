//! A CUDA driver, cuBLAS and cuRAND without a GPU, for tests: real host code of candle and cudarc runs on it.
//!
//! * Memory is the host's, with a table of what is allocated. Kernels, products and copies are checked against it.
//! * Kernels are the PTX that the program brings, run by an interpreter, so that what is tested is what is shipped.
//! * Products of cuBLAS are plain loops.
//! * Launches, uploads, allocations and so on are counted, for tests to read (`counts`).
//!
//! A fault is an error of the call, and a line on stderr that says what was wrong. With `NTL_FAKE_CUDA_NUMERICS=off` kernels and
//! products are checked and counted but not computed; `NTL_FAKE_CUDA_MEMORY` is how many bytes of memory the device has. As a shared
//! library it stands for `libcuda.so.1`, `libcublas.so.13` and `libcurand.so.10` at once (`scripts/fake-gpu-check`). What it does
//! not model: time, streams that run side by side, several devices, and the order in which a device's products and reductions add up.

#![expect(unsafe_code, reason = "device memory is addresses, and the interface is C")]

mod api;
mod counts;
mod driver;
mod fault;
mod memory;
mod product;
mod ptx;
mod sabotage;

pub use counts::{Counts, Total};
pub use driver::{Driver, driver};
pub use fault::{Code, Fault};
pub use memory::Memory;
pub use product::{Matrix, Product, Scalar};
pub use ptx::{Kernel, Launch, Module, launch};

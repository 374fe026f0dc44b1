//! An interpreter of PTX, the text form in which kernels are shipped. It runs the same text that a driver
//! would compile.
//!
//! [`Module`] finds the functions of a text, [`Kernel`] is one entry decoded to instructions over numbered
//! registers, and [`launch`] runs a grid of it. An unknown instruction is an error that names it, and every
//! memory access is checked.

mod alu;
mod decode;
mod program;
mod races;
mod run;
mod source;
mod types;

pub use program::Kernel;
pub use run::Launch;
pub(crate) use run::{Execution, launch};
pub use source::Module;

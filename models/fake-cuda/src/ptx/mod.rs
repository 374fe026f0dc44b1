//! An interpreter of PTX, the text that kernels are shipped as: what runs here is what a driver would compile.
//!
//! [`Module`] finds the functions of a text, [`Kernel`] is one entry decoded to instructions over numbered registers, and
//! [`launch`] runs a grid of it. An instruction that the interpreter does not know is an error that names it, and every
//! access to memory is checked.

mod alu;
mod decode;
mod program;
mod run;
mod source;
mod types;

pub use program::Kernel;
pub use run::{Launch, launch};
pub use source::Module;

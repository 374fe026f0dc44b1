//! Which implementation runs a model, and the one that is not ours: mistral.rs.
//!
//! mistral.rs knows more architectures than the native engine, reads GGUF files and quantises at load. [`load`] takes
//! the native engine wherever it serves a checkpoint, else mistral.rs where it was compiled in (feature `mistralrs`),
//! behind the same engine contract. Not here: HTTP, sampling, and anything of numbers.

#[cfg(feature = "mistralrs")]
mod backend;
mod choose;
mod isq;
#[cfg(any(test, feature = "mistralrs"))]
mod sequences;

pub use choose::{ARCHITECTURES, Backend, Options, load};
pub use isq::Isq;

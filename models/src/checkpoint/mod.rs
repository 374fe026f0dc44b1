//! Checkpoint folders as `save_pretrained` leaves them.

mod error;
mod files;
mod kind;
mod weights;

pub use error::LoadError;
pub use files::{CheckpointFiles, FileBytes};
pub use kind::architecture;
pub use weights::Weights;

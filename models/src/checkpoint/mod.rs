//! Checkpoint folders as `save_pretrained` leaves them.
//!
//! What is read is taken to be hostile: sizes are checked before anything is allocated, nothing is executed, links may
//! not lead out, and every refusal is one line that names the file, and the tensor or field where there is one.

mod convert;
mod error;
mod facts;
mod files;
mod kind;
mod links;
mod reader;
mod safetensors;
mod shards;
mod table;
mod torch;
mod weights;
mod yaml;

pub use error::LoadError;
pub use facts::{CheckpointFacts, Choice, Choices, Origin, TokenizerType, TrainedEncoding};
pub use files::CheckpointFiles;
pub use kind::architecture;
pub use weights::{WeightSummary, Weights};

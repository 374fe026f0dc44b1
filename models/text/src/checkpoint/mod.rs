//! Checkpoint directories in the format of `save_pretrained`.
//!
//! Files are treated as hostile. Sizes are checked before anything is allocated, nothing is executed, and
//! links must not lead out of the directory. Every error is one line that names the file, and the tensor or
//! field if it concerns one.

mod config;
mod error;
mod facts;
mod files;
mod fingerprint;
mod links;
mod reader;
mod yaml;

pub use config::{
    CONFIG_FILE, FieldError, GENERATION_FILE, LayerType, OWN_FILE, TokenIds, architecture,
    architecture_field, check_cap, check_count, check_epsilon, check_not_quantised, check_sizes, eos_ids,
    generation_eos_ids, layer_types,
};
pub use error::{LoadError, LoadResult};
pub use facts::{CheckpointFacts, Choice, Choices, Origin, TokenizerType, TrainedEncoding, TruncationSide};
pub use files::{CheckpointFiles, OneFile};
pub use fingerprint::files_fingerprint;
pub use reader::FileReader;

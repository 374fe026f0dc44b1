//! What kind of checkpoint a folder holds.

use serde::Deserialize;

use super::{CheckpointFiles, LoadError};

const FILE: &str = "config.json";

/// The `architectures` entry of a checkpoint, which alone tells its kind.
///
/// # Errors
/// When `config.json` is missing, no JSON, or has no such entry.
pub fn architecture(files: &CheckpointFiles) -> Result<String, LoadError> {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(default)]
        architectures: Vec<String>,
    }
    let file = files.name_of(FILE);
    let kind: Kind =
        serde_json::from_slice(&files.require(FILE)?).map_err(|error| LoadError::malformed(&file, error))?;
    let first = kind.architectures.into_iter().next();
    first.ok_or_else(|| {
        LoadError::field(file, "architectures", "missing: the kind of checkpoint is not known")
    })
}

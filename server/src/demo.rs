//! The embedded demo checkpoint, which is served without `--model`.

use ntl_models::checkpoint::{CheckpointFiles, LoadError};

/// The name in requests.
pub const NAME: &str = "t5-ntl-was";

/// Made by `demo/pack.sh`; see `demo/README.md`.
static ARCHIVE: &[u8] = include_bytes!("../demo/demo.tar.gz");

pub fn files() -> Result<CheckpointFiles, LoadError> {
    CheckpointFiles::archive("the embedded demo checkpoint", ARCHIVE)
}

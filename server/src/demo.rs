//! The checkpoint inside the program: what is served when no `--model` is given.

use ntl_models::checkpoint::{CheckpointFiles, LoadError};

/// Its name in requests.
pub const NAME: &str = "t5-ntl-was";

/// Made by `demo/pack.sh`; see `demo/README.md`.
static ARCHIVE: &[u8] = include_bytes!("../demo/t5-ntl-was.tar.gz");

/// Its files.
///
/// # Errors
/// When the archive was damaged before it was compiled in.
pub fn files() -> Result<CheckpointFiles, LoadError> {
    CheckpointFiles::archive("the embedded demo checkpoint", ARCHIVE)
}

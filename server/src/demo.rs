//! The embedded demo checkpoint, which is served without `--model`.

use ntl_text::checkpoint::{CheckpointFiles, LoadError};

/// The name in requests.
pub const NAME: &str = "t5-ntl-was";

/// Questions that show what it can do: two peaks, a difference, a wide guess, a decimal.
pub const EXAMPLES: [&str; 4] = [
    "How many stars: decent room, opinions are divided?",
    "What is 336 - -20?",
    "About how many beans are in 3 cups?",
    "Sum 12.5 and 3.",
];

/// Made by `demo/pack.sh`; see `demo/README.md`.
static ARCHIVE: &[u8] = include_bytes!("../demo/demo.tar.gz");

pub fn files() -> Result<CheckpointFiles, LoadError> {
    CheckpointFiles::archive("the embedded demo checkpoint", ARCHIVE)
}

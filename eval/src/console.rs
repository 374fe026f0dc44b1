//! Output streams of a command and its exit status.

use std::io::{self, Write};
use std::path::PathBuf;

/// Results go to `out`, progress and complaints to `err`.
pub struct Console<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
    pub err_is_terminal: bool,
}

/// What the exit code of a finished command says, ordered by precedence: of several runs the greatest one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitStatus {
    Success,
    ItemsFailed,
    GateMissed,
}

impl ExitStatus {
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::GateMissed => 3,
            Self::ItemsFailed => 4,
        }
    }
}

/// Standard output or standard error does not take any more.
#[derive(Debug, thiserror::Error)]
#[error("could not write to the console")]
pub struct OutputError(#[from] pub io::Error);

impl OutputError {
    /// Whether the reader has gone, such as `head` after its first lines.
    pub fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// A person pressed Ctrl-C; the exit code is 130.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    #[error("interrupted; the answers so far are in {}: go on with the same command and --resume", .folder.display())]
    Kept { folder: PathBuf },
    #[error("interrupted; without --out no answers are kept")]
    Lost,
}

/// Flags that clap accepts but that contradict each other or the data; the exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

//! Output streams of a command and its exit status.

use std::io::Write;

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

/// Flags that clap accepts but that contradict each other or the data; the exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

//! Errors that several modules return, and that decide the exit code.

use std::io;

/// Standard output or standard error cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("could not write to the console")]
pub struct OutputError(#[from] pub io::Error);

impl OutputError {
    /// Returns `true` if the reader has closed the pipe, as `head` does after its first lines.
    pub fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Flags that clap accepts but that contradict each other or the data; the exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl UsageError {
    pub fn new(message: &str) -> Self {
        Self(message.to_owned())
    }
}

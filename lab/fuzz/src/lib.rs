//! Fuzz targets: all code that reads untrusted input, and the guarantees for it.
//!
//! A [`Target`] accepts any bytes. It guarantees that it does not panic, that it needs less memory and time
//! than [`BYTES_MAX`] and [`TIME_MAX`], and that errors of rejected inputs name the file or the field.
//! [`mutate`] creates inputs from a target's corpus. [`run`] runs them and checks the guarantees.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a finding is a panic")]

mod corpus;
pub mod mutate;
pub mod run;
pub mod targets;

use std::time::Duration;

pub use targets::TARGETS;

/// Maximum size of an input. Larger files differ only in repetition, and the readers have their own size
/// limits.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// Maximum memory that an input may use: twice the limit for the values of a chat template.
pub const BYTES_MAX: usize = 256 << 20;

/// Maximum time per input, sufficient for a debug build on a busy machine.
pub const TIME_MAX: Duration = Duration::from_secs(20);

/// Stack size of the reading thread, the same as that of the server's threads.
pub const STACK_BYTES: usize = 2 << 20;

/// The result of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    /// Rejected with an error that names the cause.
    Refused,
}

/// One reader.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    /// Returns valid inputs, and some invalid ones.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Words of its format, which mutations insert.
    pub words: &'static [&'static str],
    /// Reads an input. Panics if a guarantee is violated.
    pub read: fn(&[u8]) -> Outcome,
}

/// Returns the target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

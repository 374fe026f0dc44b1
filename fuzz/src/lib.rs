//! Fuzz targets: everything that reads what strangers write, and what is promised of it.
//!
//! A [`Target`] takes any bytes. It promises not to panic, to need less memory and time than [`BYTES_MAX`] and [`TIME_MAX`],
//! and that the error of what it refuses names the file or the field. [`mutate`] makes inputs of a target's corpus;
//! [`run`] runs them and checks all of that.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a finding is a panic")]

mod corpus;
pub mod mutate;
pub mod run;
pub mod targets;

use std::time::Duration;

pub use targets::TARGETS;

/// Longest input. Larger files differ in repetition only, and the readers have limits of their own on sizes.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// Most memory that an input may take at once: twice what the values of a chat template may take.
pub const BYTES_MAX: usize = 256 << 20;

/// Longest time of an input, with room for a debug build on a busy machine.
pub const TIME_MAX: Duration = Duration::from_secs(20);

/// Stack of the thread that reads, as that of the server's threads.
pub const STACK_BYTES: usize = 2 << 20;

/// What became of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    /// By an error that names what is wrong.
    Refused,
}

/// One reader.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    /// Valid inputs, and some that are not.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Words of its format, which mutations insert.
    pub words: &'static [&'static str],
    /// Reads an input; panics where a promise is broken.
    pub read: fn(&[u8]) -> Outcome,
}

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

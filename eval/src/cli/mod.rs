//! The command line as typed.

pub mod args;
pub mod flags;

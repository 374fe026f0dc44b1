//! The engine over a scripted model that writes down how it is called.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod fairness;
mod faults;
mod limits;
mod recorder;

//! The engine with a scripted model that records its calls.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod fairness;
mod faults;
mod limits;
mod prefill;
mod recorder;

//! The mistral.rs backend gives the same answers as the native engine. `scripts/test-mistralrs` runs these
//! tests.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::panic, reason = "tests fail by panicking")]

mod gguf;
mod load;
mod same;
mod support;
mod tiny;

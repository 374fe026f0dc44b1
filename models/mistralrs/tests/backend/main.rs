//! mistral.rs behind the engine contract gives the answers of the native engine. `scripts/test-mistralrs` runs these tests.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::panic, reason = "tests fail by panicking")]

mod gguf;
mod load;
mod same;
mod support;
mod tiny;

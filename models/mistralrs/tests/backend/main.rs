//! mistral.rs behind our engine contract: the same answers as the native engine, whatever clients do.
//!
//! Only with the feature `mistralrs`: `cargo test --workspace --features ntl-mistralrs/mistralrs --test backend`.

#![cfg(feature = "mistralrs")]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::panic, reason = "tests fail by panicking")]

mod gguf;
mod load;
mod same;
mod support;
mod tiny;

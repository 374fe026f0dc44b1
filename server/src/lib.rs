//! The HTTP server: an OpenAI-style API over models that write numbers, with exact distributions of these numbers.
//!
//! A request passes [`listen`] (connections), `middleware`, `routes` and an adapter in `adapters`, which makes a
//! protocol-neutral `request` of it; a model in [`engine`] runs it, `answer` makes pieces of its events, and the adapter
//! writes them. [`serve`] runs all of it from a [`config::Config`]. A test needs only a [`state::AppState`] with a model
//! and [`app::router`]. Not here: how text is decoded (`ntl-core`) and computed (`ntl-models`).

mod adapters;
mod answer;
pub mod app;
pub mod backend;
pub mod config;
pub mod demo;
pub mod engine;
mod error;
pub mod inspect;
pub mod listen;
pub mod metrics;
mod middleware;
mod openapi;
mod paths;
mod request;
mod routes;
pub mod serve;
pub mod settings;
pub mod state;
pub mod telemetry;

use std::time::{SystemTime, UNIX_EPOCH};

/// Cargo features and whether they are compiled in.
pub(crate) const FEATURES: [(&str, bool); 2] =
    [("cuda", cfg!(feature = "cuda")), ("otel", cfg!(feature = "otel"))];

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Source revision, as the build names it.
pub const COMMIT: &str = match option_env!("NTL_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

#[expect(clippy::expect_used, reason = "a clock before 1970 is a broken machine")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_secs()
}

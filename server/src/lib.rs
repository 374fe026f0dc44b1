//! The HTTP server: an OpenAI-style API over models that write numbers, with whole distributions of them.
//!
//! Requests go one way: [`app`] (routes and middleware) to wire types, which `convert` makes jobs of; a
//! [`models::ServedModel`] gives them to its engine; the events that come back become one JSON answer or a stream.
//! [`serve`] runs all of it from a [`config::Config`]. A test needs only an [`state::AppState`] with a model in it and
//! [`app::router`]. Not here: how anything is decoded (`ntl-core`) or computed (`ntl-models`).

mod adapters;
mod answers;
pub mod app;
pub mod args;
mod auth;
pub mod backend;
mod client;
pub mod config;
pub mod config_file;
mod convert;
mod cors;
pub mod demo;
mod error;
mod extract;
pub mod inspect;
pub mod listen;
pub mod metrics;
pub mod models;
pub mod openapi;
mod openmetrics;
mod reply;
mod request_id;
mod routes;
pub mod serve;
mod sse;
pub mod state;
pub mod telemetry;
mod traces;
mod track;

/// Cargo features that were compiled in.
pub(crate) const FEATURES: [(&str, bool); 2] =
    [("cuda", cfg!(feature = "cuda")), ("otel", cfg!(feature = "otel"))];

/// Version of this package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Source revision that was built, as the build said.
pub const COMMIT: &str = match option_env!("NTL_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

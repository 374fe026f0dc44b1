//! The HTTP server: an OpenAI-style API over models that write numbers, with exact distributions of these
//! numbers.
//!
//! A request passes [`listen`] (connections), `middleware` and `routes`. One of the `apis` makes a
//! protocol-neutral `request` of it, a model in [`served`] runs it, `answer` makes pieces of its events, and
//! the API writes them. [`serve`] runs all of it from a [`config::Config`]. A test needs only
//! a [`state::AppState`] with a model and [`app::router`]. Not here: how text is decoded (`ntl-core`) and
//! computed (`ntl-models`).

mod answer;
mod apis;
pub mod app;
pub mod backend;
mod blocking;
mod body_budget;
mod cache_bytes;
pub mod calibration;
mod choices;
pub mod config;
pub mod demo;
mod error;
mod fair_permits;
pub mod hub;
#[cfg(feature = "native")]
pub mod inspect;
mod json;
mod json_body;
pub mod keys;
pub mod listen;
mod memory;
pub mod metrics;
mod middleware;
pub mod native;
mod openapi;
mod paths;
pub mod proxies;
pub mod quota;
pub mod reload;
pub mod remote;
mod request;
mod response_budget;
mod routes;
pub mod serve;
pub mod served;
pub mod settings;
pub mod signals;
mod start_lines;
pub mod state;
pub mod telemetry;

use std::time::{SystemTime, UNIX_EPOCH};

/// Cargo features and whether they are compiled in.
const FEATURES: [(&str, bool); 4] = [
    ("cuda", cfg!(feature = "cuda")),
    ("mistralrs", cfg!(feature = "mistralrs")),
    ("native", cfg!(feature = "native")),
    ("otel", cfg!(feature = "otel")),
];

/// The Cargo features that are compiled in.
fn features() -> impl Iterator<Item = &'static str> {
    FEATURES.into_iter().filter_map(|(name, is_on)| is_on.then_some(name))
}

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Source revision: the value of `NTL_COMMIT` in the build, or the commit of its git checkout.
pub const COMMIT: &str = match option_env!("NTL_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

#[expect(clippy::expect_used, reason = "a clock before 1970 is a broken machine")]
#[expect(clippy::disallowed_methods, reason = "the date of a response")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_of_the_package_is_announced() {
        let package: toml::Table = include_str!("../Cargo.toml").parse().unwrap();
        let features = package["features"].as_table().unwrap();
        let declared: Vec<&String> = features.keys().filter(|name| *name != "default").collect();
        assert_eq!(FEATURES.map(|(name, _)| name).to_vec(), declared);
    }
}

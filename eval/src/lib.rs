//! Scores models behind an OpenAI-style endpoint on numeric benchmarks.
//!
//! Data goes one way: command line ([`cli`]) → [`settings`] → run ([`session`]; [`run`]: ask, extract, score;
//! over the items of [`tasks`] and [`data`]) → files ([`store`]) → [`metrics`] → [`report`], [`compare`],
//! [`calibrate`] and [`verify`]. [`app`] dispatches the commands. A model is reached over HTTP and in no
//! other way. The library exists so that tests and the binary share it.

pub mod app;
pub mod calibrate;
pub mod cli;
pub mod compare;
pub mod console;
pub mod data;
pub mod error;
pub mod format;
pub mod json;
pub mod json_path;
pub mod metrics;
pub mod report;
pub mod run;
pub mod session;
pub mod settings;
pub mod stats;
pub mod store;
pub mod tasks;
pub mod template;
pub mod verify;

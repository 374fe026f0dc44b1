//! Scores models behind an OpenAI-style endpoint on numeric benchmarks.
//!
//! One way only: [`tasks`] → [`runner`] (through [`client`]) → [`score`] (by [`metrics`]) → [`report`];
//! [`app`] joins them. A model is reached over HTTP and in no other way. The library exists so that tests and
//! the binary share it.

pub mod app;
pub mod args;
pub mod client;
pub mod data;
pub mod error;
pub mod flags;
pub mod gate;
pub mod metrics;
pub mod progress;
pub mod report;
pub mod runner;
pub mod score;
pub mod tasks;

//! Scores models behind an OpenAI-style endpoint on numeric benchmarks.
//!
//! One way only: [`tasks`] → [`interview`] (requests from [`ask`], sent by [`runner`] through [`client`], kept by
//! [`journal`]) → [`score`] (by [`readings`] and [`metrics`]) → [`report`] and [`samples`]; [`session`] joins them, [`app`]
//! is the command line. A model is reached over HTTP and in no other way. The library exists so that tests and the
//! binary share it.
//!
//! Finished runs are read back from their folders by [`saved`], and only from there: [`compare`] sets two against each
//! other (by [`stats`]), [`page`] writes reports that people read (with the drawings of [`chart`]).

pub mod app;
pub mod args;
pub mod ask;
pub mod chart;
pub mod client;
pub mod compare;
pub mod data;
pub mod error;
pub mod figures;
pub mod flags;
pub mod gate;
pub mod interview;
pub mod journal;
pub mod metrics;
pub mod page;
pub mod progress;
pub mod quirks;
pub mod readings;
pub mod report;
pub mod runner;
pub mod samples;
pub mod saved;
pub mod score;
pub mod session;
pub mod stats;
pub mod tasks;

//! Runs a task: sends its items to servers, extracts numbers from the answers, scores them, writes the
//! results.

pub mod answer_extraction;
pub mod client;
pub mod decisions;
pub mod drift;
pub mod evaluator;
pub mod gate;
pub mod pairs;
pub mod progress;
pub mod protocol;
pub mod reply;
pub mod request;
pub mod runner;
pub mod samples;
pub mod score;

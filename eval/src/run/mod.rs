//! Runs a task: sends its items to servers, extracts numbers from the answers, scores them, writes the results.

pub mod answer_extraction;
pub mod client;
pub mod evaluator;
pub mod gate;
pub mod pairs;
pub mod paper;
pub mod progress;
pub mod reply;
pub mod request;
pub mod runner;
pub mod samples;
pub mod score;
pub mod session;

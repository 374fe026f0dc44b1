//! Runs a task: asks a server every question, extracts the answers, scores them.

pub mod answer_extraction;
pub mod client;
pub mod evaluator;
pub mod gate;
pub mod paper;
pub mod progress;
pub mod reply;
pub mod request;
pub mod runner;
pub mod samples;
pub mod score;
pub mod session;

//! Confidence bounds of a distribution from independent samples of answers. They hold for any distribution
//! and any number of samples.
//!
//! In: the reading of each sample, in the order in which the samples were requested. Out: bounds. Each bound
//! holds with a probability of at least [`CONFIDENCE`] by itself, also if [`Looks`] ended the sampling early.
//! Samples whose reading is unknown may be anything, and bounds allow for all of it. Not here: how answers
//! are requested, and how their numbers are read (`numbers`).

mod betting;
mod binomial;
mod looks;
mod names;
mod numbers;
mod options;

pub use looks::{Look, Looks};
pub use names::{OptionName, OptionNames};
pub use numbers::NumberSamples;
pub use options::{OptionReading, OptionSamples};

/// The probability with which each bound holds at least.
pub const CONFIDENCE: f64 = 0.95;

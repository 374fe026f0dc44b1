//! `report.json`, as a reader sees it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The figures of one run.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Name of the task.
    pub task: String,
    /// Name of the split.
    pub split: String,
    /// The model, as the server calls it.
    pub model: String,
    /// The servers, separated by commas.
    pub endpoint: String,
    /// How it was asked.
    pub mode: String,
    /// Items.
    pub n: usize,
    /// Items with a number.
    pub n_valid: usize,
    /// Items without an answer.
    pub failed: usize,
    /// Seed of whatever was drawn.
    pub seed: Option<u64>,
    /// Everything that may change the result.
    pub settings: Map<String, Value>,
    /// All metrics.
    pub metrics: BTreeMap<String, Metric>,
    /// What simple answers would reach: by name of the baseline, then by metric.
    pub baselines: Map<String, Value>,
    /// Programs that took part.
    pub versions: Map<String, Value>,
    /// When the first question was sent.
    pub started: String,
    /// Until the last answer.
    pub seconds: f64,
    /// Closed mass behind the numbers, on average.
    pub mass_closed: Option<f64>,
    /// What became of items without a number.
    pub unparsed_rule: Option<String>,
    /// Where the paper's code and sane figures part.
    pub quirks: Vec<Quirk>,
    /// Figures by module.
    pub modules: BTreeMap<String, Module>,
    /// How the predicted distributions agree with the truth.
    pub calibration: Option<Calibration>,
}

/// A figure with its interval and the number of items behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Metric {
    /// Missing where it is not defined.
    pub value: Option<f64>,
    /// Lower end of the 95% interval.
    pub low: Option<f64>,
    /// Upper end of it.
    pub high: Option<f64>,
    /// How many items it is over.
    pub n: usize,
}

/// A quirk of the paper's evaluation, with its figure and the sane one.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Quirk {
    /// What it is called.
    pub name: String,
    /// The figure with the quirk.
    pub paper: Value,
    /// The figure without.
    pub sane: Value,
    /// What it does.
    pub note: String,
}

/// Figures of one module.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Module {
    /// Items.
    pub n: usize,
    /// Items with a number.
    pub n_valid: usize,
    /// All metrics.
    pub metrics: BTreeMap<String, Metric>,
}

/// How predicted distributions agree with the truth.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// Counts of the probability integral transform, in bins of equal width over 0 to 1.
    pub pit: Vec<f64>,
    /// How often the truth lies at or below each returned quantile.
    pub coverage: Vec<Coverage>,
}

/// One returned quantile against the truth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// The nominal share.
    pub q: f64,
    /// How many truths are at or below the quantile.
    pub covered: usize,
    /// Of how many.
    pub n: usize,
}

//! Gates: bounds on metrics that decide the exit code.
//!
//! A metric without a value misses every gate: nothing shows that it holds. A baseline is an earlier report; a metric that
//! is certainly worse than there misses it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cli::bound::Bound;
use crate::metrics::Metrics;
use crate::metrics::registry::{Better, better};

/// Which side of a bound is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Below it: `--fail-under`.
    Under,
    /// Above it: `--fail-over`.
    Over,
}

/// A gate that was missed, and by what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Miss {
    bound: Bound,
    side: Side,
    got: Option<f64>,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, limit) = (self.bound.metric, self.bound.value);
        let side = if self.side == Side::Under { "below" } else { "above" };
        match self.got {
            Some(got) => write!(f, "{name} is {got}, {side} {limit}"),
            None => write!(f, "{name} has no value to hold against {limit}"),
        }
    }
}

/// The gates on one side that `metrics` miss, in their order.
pub fn missed<'a>(metrics: &'a Metrics, bounds: &'a [Bound], side: Side) -> impl Iterator<Item = Miss> + 'a {
    bounds.iter().filter_map(move |&bound| {
        let got = metrics.get(bound.metric).value;
        let held = got.is_some_and(|got| match side {
            Side::Under => got >= bound.value,
            Side::Over => got <= bound.value,
        });
        (!held).then_some(Miss { bound, side, got })
    })
}

/// The values of an earlier report.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Baseline {
    task: String,
    split: String,
    metrics: BTreeMap<String, BaselineMetric>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct BaselineMetric {
    value: Option<f64>,
}

/// Why an earlier report cannot be compared with.
#[derive(Debug, thiserror::Error)]
#[error("could not use {} as a baseline: {problem}", .file.display())]
pub struct BaselineError {
    file: PathBuf,
    problem: String,
}

impl Baseline {
    /// Reads `report.json` of a folder, or of the folder in it that is named after the split.
    ///
    /// # Errors
    /// There is none, it cannot be read, or it is of another task or split.
    pub fn read(folder: &Path, task: &str, split: &str) -> Result<Self, BaselineError> {
        let inner = folder.join(split).join("report.json");
        let file = if inner.exists() { inner } else { folder.join("report.json") };
        let failed = |problem: String| BaselineError { file: file.clone(), problem };
        let bytes = fs::read(&file).map_err(|error| failed(error.to_string()))?;
        let found: Self = serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        if (found.task.as_str(), found.split.as_str()) != (task, split) {
            return Err(failed(format!("it is of {} {}, not of {task} {split}", found.task, found.split)));
        }
        Ok(found)
    }

    /// What is worse than it was, the whole 95% interval included; only of metrics that have a better side.
    pub fn worse<'a>(&'a self, metrics: &'a Metrics) -> impl Iterator<Item = Worse> + 'a {
        metrics.iter().filter_map(|(name, metric)| {
            let (was, is) = (self.metrics.get(name)?.value?, metric.value?);
            let worse = match better(name) {
                Better::Higher => metric.high.unwrap_or(is) < was,
                Better::Lower => metric.low.unwrap_or(is) > was,
                Better::Unknown => false,
            };
            worse.then(|| Worse { name: name.to_owned(), was, is })
        })
    }
}

/// A metric that got worse.
#[derive(Debug, Clone, PartialEq)]
pub struct Worse {
    name: String,
    was: f64,
    is: f64,
}

impl fmt::Display for Worse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, worse than the baseline's {}", self.name, self.is, self.was)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Row;

    #[test]
    fn only_what_is_certainly_worse_misses_a_baseline() {
        let folder = tempfile::tempdir().unwrap();
        let write = |accuracy: f64, mae: f64| {
            let report = serde_json::json!({
                "task": "t", "split": "s", "metrics": {
                    "accuracy": { "value": accuracy }, "mae": { "value": mae }, "r2": { "value": null },
                    "retired": { "value": 1.0 }
                }
            });
            fs::write(folder.path().join("report.json"), report.to_string()).unwrap();
            Baseline::read(folder.path(), "t", "s").unwrap()
        };
        // Accuracy 0.5 (0.15 to 0.85), mean absolute error 1 (0 to 2).
        let rows = [Row::read(1.0, 1.0), Row::read(2.0, 2.0), Row::read(3.0, 1.0), Row::read(4.0, 2.0)];
        let metrics = Metrics::of(&rows.each_ref(), 0);
        let worse =
            |baseline: &Baseline| baseline.worse(&metrics).map(|worse| worse.name).collect::<Vec<_>>();
        assert!(worse(&write(0.8, 0.5)).is_empty());
        assert_eq!(worse(&write(0.9, 0.5)), ["accuracy"]);
        assert!(worse(&write(0.1, 9.0)).is_empty());
        let error = Baseline::read(folder.path(), "t", "other").unwrap_err().to_string();
        assert!(error.ends_with("it is of t s, not of t other"), "{error}");
    }

    #[test]
    fn a_gate_holds_at_its_value_and_misses_beyond_it_or_without_a_value() {
        let metrics = Metrics::of(&[&Row::read(1.0, 1.0), &Row::read(3.0, 1.0)], 0);
        let count = |metric, value, side| missed(&metrics, &[Bound { metric, value }], side).count();
        assert_eq!(count("mae", 1.0, Side::Under), 0);
        assert_eq!(count("mae", 1.0, Side::Over), 0);
        assert_eq!(count("mae", 1.1, Side::Under), 1);
        assert_eq!(count("mae", 0.9, Side::Over), 1);
        assert_eq!(count("r2", -99.0, Side::Under), 1);
    }

    #[test]
    fn a_miss_says_what_was_asked_and_what_was_found() {
        let metrics = Metrics::of(&[&Row::read(3.0, 1.0)], 0);
        let (mae, r2) = (Bound { metric: "mae", value: 1.0 }, Bound { metric: "r2", value: 0.5 });
        let texts: Vec<String> =
            missed(&metrics, &[mae, r2], Side::Over).map(|miss| miss.to_string()).collect();
        assert_eq!(texts, ["mae is 2, above 1", "r2 has no value to hold against 0.5"]);
    }
}

//! The result of one split: what `report.json` holds.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::cli::flags::Mode;
use crate::data::Item;
use crate::metrics::spread::Calibration;
use crate::metrics::{Baselines, Metrics, Outcome, Row};

/// What `report.json` holds. Never NaN or infinite: what is not defined is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the task.
    pub task: &'static str,
    /// Name of the split.
    pub split: String,
    /// The model, as the server calls it.
    pub model: String,
    /// The servers, separated by commas.
    pub endpoint: String,
    /// How it was asked.
    pub mode: Mode,
    /// Items.
    pub n: usize,
    /// Items with a number, or with an answer where none is asked for.
    pub n_valid: usize,
    /// Items without an answer.
    pub failed: usize,
    /// Seed of generated items and of intervals.
    pub seed: u64,
    /// Everything that may change the result.
    pub settings: Map<String, Value>,
    /// All metrics.
    pub metrics: Metrics,
    /// What constant answers would reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baselines: Option<Baselines>,
    /// How answers without a number count.
    pub unparsed_rule: &'static str,
    /// Paper mode: where the paper's code goes ways of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quirks: Vec<Quirk>,
    /// The parts of the data set, where there are several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub modules: BTreeMap<String, Module>,
    /// Whether probabilities mean what they say; in regress mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
    /// Closed mass behind the numbers, on average; in regress mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mass_closed: Option<f64>,
    /// Programs that took part.
    pub versions: BTreeMap<&'static str, &'static str>,
    /// When the first question was sent, UTC.
    pub started: String,
    /// Until the last answer.
    pub seconds: f64,
}

/// A part of the data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Module {
    /// Items.
    pub n: usize,
    /// Items with a number.
    pub n_valid: usize,
    /// All metrics.
    pub metrics: Metrics,
}

impl Module {
    /// The metrics of each module that items name.
    pub fn all(items: &[Item], rows: &[Row], seed: u64) -> BTreeMap<String, Self> {
        let mut groups: BTreeMap<&str, Vec<Row>> = BTreeMap::new();
        for (item, row) in items.iter().zip(rows) {
            if let Some(module) = &item.module {
                groups.entry(module).or_default().push(row.clone());
            }
        }
        let module = |rows: &[Row]| {
            let Counts { n, n_valid, .. } = Counts::of(rows);
            Self { n, n_valid, metrics: Metrics::of(rows, seed) }
        };
        groups.into_iter().map(|(name, rows)| (name.to_owned(), module(&rows))).collect()
    }
}

/// A figure that the paper's code computes in a way of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quirk {
    /// Which figure.
    pub name: &'static str,
    /// By the paper's code; missing where that is NaN or infinite.
    pub paper: Option<f64>,
    /// By ours, on the same texts.
    pub sane: Option<f64>,
    /// What is different.
    pub note: String,
}

/// How many items of which fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub n: usize,
    /// With a number, or with an answer where none is asked for.
    pub n_valid: usize,
    /// Without an answer.
    pub failed: usize,
}

impl Counts {
    /// Counts rows.
    pub fn of(rows: &[Row]) -> Self {
        let valid = |row: &&Row| match row.outcome {
            Outcome::Read(_) => true,
            Outcome::Unparsed => row.truth.is_none(),
            Outcome::Failed => false,
        };
        Self {
            n: rows.len(),
            n_valid: rows.iter().filter(valid).count(),
            failed: rows.iter().filter(|row| row.outcome == Outcome::Failed).count(),
        }
    }
}

/// ISO 8601 in UTC, to the second, such as `2026-01-31T23:59:59Z`. Times before 1970 read as 1970.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (mut days, in_day) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= days_in_year(year) {
        days -= days_in_year(year);
        year += 1;
    }
    let february = days_in_year(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (in_day / 3_600, in_day / 60 % 60, in_day % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

fn days_in_year(year: u64) -> u64 {
    let leap = (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    if leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), want);
        }
    }

    #[test]
    fn each_module_has_its_own_figures() {
        let item = |module: &str| Item { module: Some(module.to_owned()), ..Item::default() };
        let items = [item("a"), item("b"), item("a")];
        let rows = [Row::read(1.0, 1.0), Row::read(2.0, 1.0), Row::read(3.0, 4.0)];
        let modules = Module::all(&items, &rows, 0);
        let accuracy: Vec<(usize, Option<f64>)> = modules
            .values()
            .map(|module| (module.n, module.metrics.get(crate::metrics::Name::Accuracy).value))
            .collect();
        assert_eq!(accuracy, [(2, Some(0.5)), (1, Some(0.0))]);
        assert!(Module::all(&[Item::default()], &rows[..1], 0).is_empty());
    }
}

//! `report.json`: the result of one split, as a run writes it and as reports, comparisons and gates read it.
//!
//! Unknown keys are ignored and missing ones have defaults, so that reports of other versions can be read.
//! Never NaN or infinite: what is not defined is null.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use indexmap::{IndexMap, IndexSet};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use crate::metrics::corrected::Corrections;
use crate::metrics::cost::CostFigure;
use crate::metrics::distribution::{DistributionCalibration, Unknown};
use crate::metrics::drift::Drift;
use crate::metrics::estimates::EstimateScores;
use crate::metrics::registry::{Statistic, find};
use crate::metrics::{Baseline, Metric, Metrics, Outcome, Row};
use crate::stats::difference::ITEMS_MIN;
use crate::store::sample::plain;

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    pub task: String,
    pub split: String,
    /// As the server calls it.
    pub model: String,
    /// The servers, separated by commas.
    pub endpoint: String,
    /// `text`, `regress` or `paper`; of decision models the API, `decisions` or `systemone`.
    pub mode: String,
    /// Items.
    pub n: usize,
    /// Items with a number, or with any answer if the task does not need a number.
    pub n_valid: usize,
    /// Items without an answer.
    pub failed: usize,
    /// Seed of generated items and of the bootstrap.
    #[serialize_always]
    pub seed: Option<u64>,
    /// Everything that may change the result.
    pub settings: Map<String, Value>,
    pub metrics: Metrics,
    /// Names of the metrics that are shown first, from `--metric`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first_metrics: Vec<String>,
    /// The metrics of constant answers and of simple methods, by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub baselines: IndexMap<String, Baseline>,
    /// How answers without a number count.
    #[serialize_always]
    pub unparsed_rule: Option<String>,
    /// Paper mode: the figures that the paper's code computes differently.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quirks: Vec<PaperDifference>,
    /// The parts of the data set, if it has several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub modules: BTreeMap<String, Module>,
    /// In regress mode.
    pub calibration: Option<DistributionCalibration>,
    /// The metrics of every estimate, by name of the metric; in regress mode.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub estimates: IndexMap<String, EstimateScores>,
    /// Mean closed mass of the numbers; in regress mode.
    pub mass_closed: Option<f64>,
    /// The unknown mass of the distributions; in regress mode.
    pub unknown_mass: Option<Unknown>,
    /// Items whose open mass leaves the trimmed mean unbounded, in regress mode.
    pub unbounded: Option<Unbounded>,
    /// With `--interval`: where the ends come from, with the server's reason, and how many items have each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<String, usize>,
    /// The server's reasons for numbers without a value, and how many items have each; in regress mode.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing_numbers: BTreeMap<String, usize>,
    /// With `--score`, if true answers have no likelihood.
    pub missing_scores: Option<MissingScores>,
    /// The figures of a judge, corrected by people's scores.
    #[serde(skip_serializing_if = "Corrections::is_empty")]
    pub corrected: Corrections,
    /// The cost of the answers, by the name of the figure.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub cost: IndexMap<String, CostFigure>,
    /// With `--drift`.
    pub drift: Option<Drift>,
    /// Programs that took part.
    pub versions: Map<String, Value>,
    /// When the first question was sent, in UTC.
    pub started: String,
    /// Until the last answer.
    pub seconds: f64,
}

/// On a scale every item has a different reason.
const REASONS_SHOWN: usize = 5;

impl Report {
    /// The most frequent reasons for numbers without a value, most frequent first, and how many items have
    /// other ones.
    pub fn main_reasons(&self) -> (Vec<(&str, usize)>, usize) {
        let mut reasons: Vec<(&str, usize)> =
            self.missing_numbers.iter().map(|(reason, items)| (reason.as_str(), *items)).collect();
        reasons.sort_by_key(|(_, items)| Reverse(*items));
        let rest = reasons.split_off(REASONS_SHOWN.min(reasons.len()));
        (reasons, rest.iter().map(|(_, items)| items).sum())
    }

    /// Returns all metrics in display order. The metrics of `--metric` come before the others, even if they
    /// were not measured.
    pub fn metrics_to_show(&self) -> Vec<(&str, Metric)> {
        let mut names: IndexSet<&str> = self.first_metrics.iter().map(String::as_str).collect();
        names.extend(self.metrics.iter().map(|(name, _)| name));
        names.into_iter().map(|name| (name, self.metrics.get(name))).collect()
    }

    /// Returns the metrics of tables: those to show, except for metrics of fewer than [`ITEMS_MIN`] items.
    /// Shares stay, because their interval holds for any number of items.
    pub fn printed_metrics(&self) -> Vec<(&str, Metric)> {
        let mut metrics = self.metrics_to_show();
        metrics.retain(|(name, metric)| !is_of_too_few(name, metric));
        metrics
    }

    /// Returns the names of the metrics that [`Self::printed_metrics`] leaves out.
    pub fn unprinted_metrics(&self) -> Vec<&str> {
        let mut metrics = self.metrics_to_show();
        metrics.retain(|(name, metric)| is_of_too_few(name, metric));
        metrics.into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the name of the estimate that a metric is computed from, if the answers are distributions.
    pub fn estimate_name(&self, metric: &str) -> Option<&str> {
        let estimate = self.settings.get("estimates")?.get(metric)?.as_str()?;
        (self.mode == "regress").then_some(estimate)
    }

    /// Returns [`Self::estimate_name`] as text for readers.
    pub fn estimate_of(&self, metric: &str) -> Option<String> {
        Some(self.estimate_name(metric)?.replace('_', " "))
    }

    /// Returns the name of a metric as the title of a column, with its estimate.
    pub fn title_of(&self, metric: &str) -> String {
        match self.estimate_of(metric) {
            Some(estimate) => format!("{metric} ({estimate})"),
            None => metric.to_owned(),
        }
    }

    /// Returns the number of items whose estimates are compared.
    pub fn estimated(&self) -> usize {
        let metric = self.estimates.values().next().and_then(|scores| scores.values.values().next());
        metric.map_or(0, |metric| metric.n)
    }

    /// Returns whether the items are questions for a decision model, which may refuse them.
    pub fn may_be_refused(&self) -> bool {
        self.metrics.get("refused").value.is_some()
    }

    /// Items that were answered without a number, or refused.
    pub fn unparsed(&self) -> usize {
        self.n.saturating_sub(self.n_valid).saturating_sub(self.failed)
    }
}

fn is_of_too_few(name: &str, metric: &Metric) -> bool {
    let is_share = find(name).is_some_and(|info| matches!(info.statistic, Statistic::Share { .. }));
    metric.value.is_some() && metric.n < ITEMS_MIN && !is_share
}

/// Items whose open mass leaves the trimmed mean unbounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unbounded {
    pub n: usize,
    /// Those whose median is unbounded as well, so that they have no value. The others have the median.
    pub without_value: usize,
}

/// A figure that the paper's code computes differently.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PaperDifference {
    /// Name of the figure.
    pub name: String,
    /// The value of the paper's code, or `None` if it is NaN or infinite.
    pub paper: Option<f64>,
    /// Our value for the same texts.
    #[serde(rename = "sane")]
    pub corrected: Option<f64>,
    /// Describes the difference.
    pub note: String,
}

/// A part of the data set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Module {
    /// Items.
    pub n: usize,
    /// Items with a number.
    pub n_valid: usize,
    pub metrics: Metrics,
}

impl Module {
    /// One for each module that is named in `rows`, which are the rows of items with the modules of these.
    pub fn all<'a>(
        rows: impl Iterator<Item = (Option<&'a str>, &'a Row)>,
        seed: u64,
    ) -> BTreeMap<String, Self> {
        let mut groups: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for (module, row) in rows {
            if let Some(module) = module {
                groups.entry(module).or_default().push(row);
            }
        }
        let mut modules = BTreeMap::new();
        for (name, rows) in groups {
            let Counts { n, n_valid, .. } = Counts::of(&rows);
            modules.insert(name.to_owned(), Self { n, n_valid, metrics: Metrics::of(&rows, seed) });
        }
        modules
    }
}

/// Names and values of settings; nested ones are named `outer.inner`.
pub fn flat_settings(prefix: &str, values: &Map<String, Value>) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    for (name, value) in values {
        match value {
            Value::Object(inner) => settings.extend(flat_settings(&format!("{prefix}{name}."), inner)),
            other => settings.push((format!("{prefix}{name}"), plain(other))),
        }
    }
    settings
}

/// True answers that the server did not score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingScores {
    pub n: usize,
    /// Why the first of them has none.
    pub first: String,
}

/// As a [`Report`] counts its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub n: usize,
    pub n_valid: usize,
    pub failed: usize,
}

impl Counts {
    pub fn of(rows: &[&Row]) -> Self {
        let mut counts = Self { n: rows.len(), n_valid: 0, failed: 0 };
        for row in rows {
            match row.outcome {
                Outcome::Read(_) => counts.n_valid += 1,
                Outcome::Unparsed if !row.asks_number() && !row.is_refused() => counts.n_valid += 1,
                Outcome::Unparsed => {}
                Outcome::Failed => counts.failed += 1,
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_most_frequent_reasons_are_shown() {
        let reasons = |counts: &[usize]| Report {
            missing_numbers: counts.iter().map(|&items| (format!("reason {items}"), items)).collect(),
            ..Report::default()
        };
        let many = reasons(&[1, 2, 3, 4, 5, 6, 7]);
        let (shown, rest) = many.main_reasons();
        assert_eq!((shown.len(), shown[0], rest), (5, ("reason 7", 7), 3));
        assert_eq!(reasons(&[1, 2]).main_reasons(), (vec![("reason 2", 2), ("reason 1", 1)], 0));
    }

    #[test]
    fn metrics_of_few_items_are_not_printed_except_for_shares() {
        let rows: Vec<Row> = (0..5).map(|index| Row::read(f64::from(index), 1.0)).collect();
        let of = |rows: &[Row]| Report {
            metrics: Metrics::of(&rows.iter().collect::<Vec<_>>(), 0),
            ..Report::default()
        };
        let few = of(&rows);
        let printed: Vec<&str> = few.printed_metrics().into_iter().map(|(name, _)| name).collect();
        // R² and correlations have no value, because the truths are equal.
        assert_eq!(printed, ["accuracy", "r2", "log_r2", "pearson", "spearman", "kendall", "unparsed"]);
        assert_eq!(few.unprinted_metrics(), ["mae", "mse", "rmse", "median_ae", "log_mae", "mape"]);
        let six = of(&[rows, vec![Row::read(2.0, 3.0)]].concat());
        assert!(six.unprinted_metrics().is_empty());
    }

    #[test]
    fn each_module_has_its_own_figures() {
        let rows = [Row::read(1.0, 1.0), Row::read(2.0, 1.0), Row::read(3.0, 4.0)];
        let modules = Module::all([Some("a"), Some("b"), Some("a")].into_iter().zip(&rows), 0);
        let accuracy: Vec<(usize, Option<f64>)> =
            modules.values().map(|module| (module.n, module.metrics.get("accuracy").value)).collect();
        assert_eq!(accuracy, [(2, Some(0.5)), (1, Some(0.0))]);
        assert!(Module::all([None].into_iter().zip(&rows), 0).is_empty());
    }
}

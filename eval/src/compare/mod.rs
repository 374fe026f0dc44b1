//! Compares two runs over the same items: which is better, by how much, and how certain that is.
//!
//! Two [`Run`]s → [`pairs`] (the same items, matched) → [`measures`] (metrics of both sides as functions of
//! weights) → [`Comparison`] → [`render`]. [`models`] first runs a task on two models and then compares the
//! two directories. [`leaderboard`] ranks more than two runs.

pub mod leaderboard;
pub mod measures;
pub mod models;
pub mod pairs;
pub mod render;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde::Serialize;

use crate::error::OutputError;
use crate::metrics::corrected::CorrectedMean;
use crate::metrics::registry::{Better, better};
use crate::report::markdown;
use crate::stats::Interval;
use crate::stats::bootstrap::Bootstrap;
use crate::stats::difference::{Contrast, LEVEL, PValue, test_contrasts};
use crate::stats::holm::holm;
use crate::stats::paired::{McNemar, SignTest, sign_test};
use crate::store::report::flat_settings;
use crate::store::saved::{REPORT, Run, run_folders};
use measures::Group;
use pairs::{PairCounts, Pairs};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompareSettings {
    pub bootstrap: Bootstrap,
    /// Maximum number of items to list.
    pub items_max: usize,
    pub format: Format,
}

/// The format of a printed comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    /// One line.
    Json,
    Markdown,
}

/// Why two runs cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    #[error("A is a run of {a}, B of {b}; only runs of the same items can be compared")]
    Task { a: String, b: String },
    #[error("A has {a} items, B has {b}; only runs of the same items can be compared")]
    Length { a: usize, b: usize },
    /// The first item that differs. Texts are shortened.
    #[error("item {doc_id} has a different {what} in each run: {a:?} in A, {b:?} in B")]
    Item { doc_id: u64, what: &'static str, a: String, b: String },
}

/// The result of comparing two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub task: String,
    pub split: String,
    pub a: Side,
    pub b: Side,
    pub counts: PairCounts,
    /// Differences between the requests, if both runs have the same mode, and between the element types of
    /// the models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingDifference>,
    /// Whether a judge scored the answers of two systems to the same inputs. Then only its scores are
    /// compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub are_of_systems: bool,
    /// The difference of the mean scores of two systems, corrected by people's scores of both answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrected: Option<CorrectedMean>,
    /// Number of resamples of the bootstrap and of the permutation test.
    pub resamples: u32,
    /// Seed of both.
    pub seed: u64,
    /// Number of metrics with a p-value, for which Holm's method corrects the p-values.
    pub tests: usize,
    pub metrics: Vec<Difference>,
    /// Missing if no item was answered on both sides.
    pub mcnemar: Option<McNemar>,
    /// Missing if no number was read on both sides.
    pub sign_test: Option<SignTest>,
    /// The items whose absolute errors differ most.
    pub items: Vec<ItemDifference>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The directory of the run.
    pub run: String,
    /// The model's name on the server.
    pub model: String,
    pub mode: String,
}

impl Side {
    fn of(run: &Run) -> Self {
        Self {
            run: run.folder.display().to_string(),
            model: run.report.model.clone(),
            mode: run.report.mode.clone(),
        }
    }
}

/// A setting in which the two runs differ. An empty text means that it is not set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingDifference {
    pub name: String,
    pub a: String,
    pub b: String,
}

/// Returns the differing settings that affect the requests, and the differing element types of the models,
/// which servers may omit. The location of the data and the number of requests in flight do not change any
/// answer.
fn setting_differences(a: &Run, b: &Run) -> Vec<SettingDifference> {
    let same_mode = a.report.mode == b.report.mode;
    let a: BTreeMap<String, String> = flat_settings("", &a.report.settings).into_iter().collect();
    let b: BTreeMap<String, String> = flat_settings("", &b.report.settings).into_iter().collect();
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let mut differences = Vec::new();
    for name in names {
        let a = a.get(name).cloned().unwrap_or_default();
        let b = b.get(name).cloned().unwrap_or_default();
        let is_compared =
            if is_of_model(name) { !a.is_empty() && !b.is_empty() } else { same_mode && is_of_request(name) };
        if is_compared && a != b {
            differences.push(SettingDifference { name: name.clone(), a, b });
        }
    }
    differences
}

fn is_of_request(setting: &str) -> bool {
    setting.starts_with("request.") || ["prompt_tokens", "template", "truncation_side"].contains(&setting)
}

fn is_of_model(setting: &str) -> bool {
    ["model_dtype", "model_kv_cache_dtype"].contains(&setting)
}

/// A metric of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    pub name: String,
    pub better: Better,
    pub a: f64,
    pub b: f64,
    /// B minus A.
    pub difference: f64,
    /// 95% interval of the difference, not corrected for the number of tests. Missing if there are too few
    /// pairs, or if too few resamples have the metric.
    #[serde(flatten)]
    pub interval: Option<Interval>,
    /// Two-sided p-value of no difference, for this metric alone. Missing if the interval is.
    pub p: Option<f64>,
    /// Whether `p` is only an upper bound, because no resample was as extreme as the items.
    pub p_is_bound: bool,
    /// `p`, corrected for the number of tests.
    pub p_holm: Option<f64>,
    pub p_holm_is_bound: bool,
    /// Number of pairs.
    pub n: usize,
    /// The estimates of A and of B that the metric is computed from. Missing on a side without distributions.
    pub estimates: [Option<String>; 2],
    /// The conclusion, as a sentence.
    pub verdict: String,
}

impl Difference {
    /// Returns `true` if the difference is significant: the corrected p-value is small, and the interval lies
    /// on one side of 0.
    fn is_shown(&self) -> bool {
        self.p_holm.is_some_and(|p| p <= LEVEL) && self.interval.is_some_and(Interval::excludes_zero)
    }
}

/// An item that both sides answered with a number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ItemDifference {
    pub doc_id: u64,
    pub question: String,
    pub truth: f64,
    /// A's answer.
    pub a: f64,
    /// B's answer.
    pub b: f64,
    /// The absolute error of B minus that of A. Below 0 if B is closer.
    pub difference: f64,
}

/// Compares the runs in each pair of directories, and writes the comparisons.
pub fn write(runs: &[[PathBuf; 2]], settings: CompareSettings, out: &mut dyn Write) -> anyhow::Result<()> {
    let CompareSettings { bootstrap, items_max, format } = settings;
    for [a, b] in runs {
        let comparison = compare(&Run::load(a)?, &Run::load(b)?, bootstrap, items_max)?;
        print(&comparison, format, out).map_err(OutputError)?;
    }
    Ok(())
}

/// Returns the directories of the runs to compare: `a` and `b` themselves or, if neither holds a run, the
/// runs below them with the same path.
pub fn pairs_of_runs(a: &Path, b: &Path) -> anyhow::Result<Vec<[PathBuf; 2]>> {
    for folder in [a, b] {
        if !folder.is_dir() || folder.join(REPORT).is_file() {
            return Ok(vec![[a.to_owned(), b.to_owned()]]);
        }
    }
    let below_a = runs_below(a)?;
    let below_b = runs_below(b)?;
    if below_a != below_b || below_a.is_empty() {
        bail!(
            "{}; {}; name two runs, or directories with the same runs",
            described(a, &below_a),
            described(b, &below_b)
        );
    }
    Ok(below_a.iter().map(|run| [a.join(run), b.join(run)]).collect())
}

/// Returns the paths of the runs below a directory, relative to it.
fn runs_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut runs = Vec::new();
    for run in run_folders(folder)? {
        runs.push(run.strip_prefix(folder).map_or(run.clone(), Path::to_owned));
    }
    Ok(runs)
}

fn described(folder: &Path, runs: &[PathBuf]) -> String {
    let folder = folder.display();
    if runs.is_empty() {
        return format!("{folder} holds no {REPORT}");
    }
    let runs: Vec<String> = runs.iter().map(|run| run.display().to_string()).collect();
    format!("{folder} holds runs in {}", runs.join(", "))
}

fn print(comparison: &Comparison, format: Format, out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Text => writeln!(out, "{}", render::text(comparison)),
        Format::Json => {
            serde_json::to_writer(&mut *out, comparison)?;
            writeln!(out)
        }
        Format::Markdown => write!(out, "{}", markdown::render(&render::document(comparison))),
    }
}

/// Compares two runs and lists at most `items` items.
pub fn compare(a: &Run, b: &Run, bootstrap: Bootstrap, items: usize) -> Result<Comparison, CompareError> {
    let pairs = Pairs::of(a, b)?;
    let mut metrics: Vec<Difference> =
        measures::groups(&pairs).into_iter().flat_map(|group| differences(group, bootstrap)).collect();
    for metric in &mut metrics {
        metric.estimates = [a, b].map(|run| run.report.estimate_of(&metric.name));
    }
    let tests = conclude(&mut metrics);
    let are_of_systems = pairs.are_of_systems;
    let corrected = if are_of_systems { CorrectedMean::of(&pairs.score_differences(), None) } else { None };
    let errors: Vec<(f64, f64)> = pairs.read().map(|[a, b]| (a.absolute_error, b.absolute_error)).collect();
    let sign_test =
        if are_of_systems || errors.is_empty() { None } else { Some(sign_test(errors.into_iter())) };
    Ok(Comparison {
        task: a.report.task.clone(),
        split: a.report.split.clone(),
        a: Side::of(a),
        b: Side::of(b),
        counts: pairs.counts(),
        settings: setting_differences(a, b),
        are_of_systems,
        corrected,
        resamples: bootstrap.resamples,
        seed: bootstrap.seed,
        tests,
        metrics,
        mcnemar: if are_of_systems { None } else { pairs.mcnemar() },
        sign_test,
        items: pairs.largest_differences(if are_of_systems { 0 } else { items }),
    })
}

/// Computes the figures of a group from the same resamples. Corrected p-values and verdicts are added once
/// all groups are known.
fn differences(group: Group, bootstrap: Bootstrap) -> Vec<Difference> {
    let Group { n, differing, measured } = group;
    let plain = vec![1.0; n];
    let (names, contrasts): (Vec<String>, Vec<Contrast<'_>>) =
        measured.into_iter().map(|measured| (measured.name, measured.contrast)).unzip();
    let tested = test_contrasts(&contrasts, n, &differing, bootstrap);
    let mut differences = Vec::with_capacity(names.len());
    for ((name, contrast), tested) in names.into_iter().zip(&contrasts).zip(tested) {
        let Some([a, b]) = contrast.sides(&plain) else { continue };
        differences.push(Difference {
            better: better(&name),
            name,
            a,
            b,
            difference: b - a,
            interval: tested.map(|tested| tested.interval),
            p: tested.map(|tested| tested.p.value),
            p_is_bound: tested.is_some_and(|tested| tested.p.is_bound),
            p_holm: None,
            p_holm_is_bound: false,
            n,
            estimates: [None, None],
            verdict: String::new(),
        });
    }
    differences
}

/// Corrects the p-values of all metrics together, and fills in the verdicts. Returns the number of tests.
fn conclude(metrics: &mut [Difference]) -> usize {
    let mut p_values = Vec::new();
    for metric in &*metrics {
        p_values.extend(metric.p.map(|value| PValue { value, is_bound: metric.p_is_bound }));
    }
    let tested = metrics.iter_mut().filter(|metric| metric.p.is_some());
    for (metric, corrected) in tested.zip(holm(&p_values)) {
        (metric.p_holm, metric.p_holm_is_bound) = (Some(corrected.value), corrected.is_bound);
    }
    for metric in metrics {
        metric.verdict = render::verdict(metric);
    }
    p_values.len()
}

#[cfg(test)]
mod tests;

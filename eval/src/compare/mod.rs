//! Two runs over the same items: which is better, by how much, and how sure that is.
//!
//! Two [`Run`]s → [`pairs`] (the same items, matched) → [`measures`] (metrics of both sides as functions of weights) →
//! [`Comparison`] → [`render`]. [`models`] asks two models first; their runs are two folders from then on.

pub mod measures;
pub mod models;
pub mod pairs;
pub mod render;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde::Serialize;

use crate::cli::compare::CompareArgs;
use crate::console::{Console, ExitStatus, OutputError, UsageError};
use crate::metrics::registry::{Better, better};
use crate::report::markdown;
use crate::stats::Interval;
use crate::stats::bootstrap::{Bootstrap, test_resampled};
use crate::stats::paired::{McNemar, SignTest, mcnemar, sign_test};
use crate::store::report::flat_settings;
use crate::store::saved::{REPORT, Run, run_folders};
use measures::{Group, Measured};
use pairs::{Counts, Pairs};

/// Why two runs cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    #[error("A is a run of {a}, B of {b}; only runs of the same items can be compared")]
    Task { a: String, b: String },
    #[error("A has {a} items, B has {b}; only runs of the same items can be compared")]
    Length { a: usize, b: usize },
    /// The first item that differs; texts are shortened.
    #[error("item {doc_id} has another {what} in B: {b:?}, and in A {a:?}")]
    Item { doc_id: u64, what: &'static str, a: String, b: String },
}

/// All that is found between two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub task: String,
    pub split: String,
    pub a: Side,
    pub b: Side,
    pub counts: Counts,
    /// How the requests of the two runs differ, where both have the same mode, and how their models compute.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingDifference>,
    /// Behind every interval.
    pub resamples: u32,
    /// Of the bootstrap.
    pub seed: u64,
    pub metrics: Vec<Difference>,
    /// Missing where no item was answered on both sides.
    pub mcnemar: Option<McNemar>,
    /// Missing where no number was read on both sides.
    pub sign_test: Option<SignTest>,
    /// The items whose absolute errors differ most.
    pub items: Vec<ItemDifference>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The folder.
    pub run: String,
    /// As the server called it.
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

/// A setting that the two runs do not share. Empty texts: not set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingDifference {
    pub name: String,
    pub a: String,
    pub b: String,
}

/// The settings that decide what was requested, and in which element types models compute, which servers may leave out. Where data
/// lie, and how many requests were in flight, changes no answer.
fn setting_differences(a: &Run, b: &Run) -> Vec<SettingDifference> {
    let is_of_request =
        |name: &str| name.starts_with("request.") || ["prompt_tokens", "template"].contains(&name);
    let is_of_model = |name: &str| ["model_dtype", "model_kv_cache_dtype"].contains(&name);
    let same_mode = a.report.mode == b.report.mode;
    let settings = |run: &Run| -> BTreeMap<String, String> {
        let all = flat_settings("", &run.report.settings).into_iter();
        all.filter(|(name, _)| same_mode && is_of_request(name) || is_of_model(name)).collect()
    };
    let (a, b) = (settings(a), settings(b));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let of = |side: &BTreeMap<String, String>, name: &String| side.get(name).cloned().unwrap_or_default();
    let both = names.into_iter().map(|name| (name, of(&a, name), of(&b, name)));
    let is_known = |a: &str, b: &str| !a.is_empty() && !b.is_empty();
    both.filter(|(name, a, b)| a != b && (!is_of_model(name) || is_known(a, b)))
        .map(|(name, a, b)| SettingDifference { name: name.clone(), a, b })
        .collect()
}

/// A metric of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    pub name: String,
    pub better: Better,
    pub a: f64,
    pub b: f64,
    /// B less A.
    pub difference: f64,
    /// 95% interval of the difference; missing where too few resamples have the metric.
    #[serde(flatten)]
    pub interval: Option<Interval>,
    /// Two-sided, of no difference.
    pub p: Option<f64>,
    /// Pairs of items.
    pub n: usize,
    /// What follows, as a sentence.
    pub verdict: String,
}

/// An item that both sides answered with a number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ItemDifference {
    pub doc_id: u64,
    pub question: String,
    pub truth: f64,
    /// What A answered.
    pub a: f64,
    /// What B answered.
    pub b: f64,
    /// Absolute error of B less that of A: below 0 where B is closer.
    pub difference: f64,
}

/// Compares two runs, or asks two models and compares theirs, split by split.
pub fn run(args: &CompareArgs, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    let (runs, ending) = match (&args.task, &args.a, &args.b) {
        (Some(task), ..) => models::run(args, task, console)?,
        (None, Some(a), Some(b)) => (pairs_of_runs(a, b)?, ExitStatus::Success),
        (None, ..) => {
            let message = "name the task to ask the models, or the folders of two runs";
            return Err(UsageError(message.to_owned()).into());
        }
    };
    let bootstrap = Bootstrap { resamples: args.resamples, seed: args.seed };
    for [a, b] in runs {
        let comparison = compare(&Run::load(&a)?, &Run::load(&b)?, bootstrap, args.items)?;
        write(&comparison, args, console.out).map_err(OutputError)?;
    }
    Ok(ending)
}

/// The folders of the runs to compare: `a` and `b` themselves, or where neither holds a run, those below them that have the
/// same path.
fn pairs_of_runs(a: &Path, b: &Path) -> anyhow::Result<Vec<[PathBuf; 2]>> {
    let holds_none = |folder: &Path| folder.is_dir() && !folder.join(REPORT).is_file();
    if !holds_none(a) || !holds_none(b) {
        return Ok(vec![[a.to_owned(), b.to_owned()]]);
    }
    let below = |folder: &Path| -> anyhow::Result<Vec<PathBuf>> {
        let found = run_folders(folder)?.into_iter();
        Ok(found.map(|run| run.strip_prefix(folder).map_or(run.clone(), Path::to_owned)).collect())
    };
    let (below_a, below_b) = (below(a)?, below(b)?);
    if below_a != below_b || below_a.is_empty() {
        let list = |folder: &Path, runs: &[PathBuf]| {
            let runs: Vec<String> = runs.iter().map(|run| run.display().to_string()).collect();
            let runs =
                if runs.is_empty() { format!("no {REPORT}") } else { format!("runs in {}", runs.join(", ")) };
            format!("{} holds {runs}", folder.display())
        };
        bail!("{}; {}; name two runs, or folders with the same runs", list(a, &below_a), list(b, &below_b));
    }
    Ok(below_a.iter().map(|run| [a.join(run), b.join(run)]).collect())
}

fn write(comparison: &Comparison, args: &CompareArgs, out: &mut dyn Write) -> io::Result<()> {
    if args.json {
        serde_json::to_writer(&mut *out, comparison)?;
        writeln!(out)
    } else if args.markdown {
        write!(out, "{}", markdown::render(&render::document(comparison)))
    } else {
        writeln!(out, "{}", render::text(comparison))
    }
}

/// Compares two runs, with at most `items` items listed.
pub fn compare(a: &Run, b: &Run, bootstrap: Bootstrap, items: usize) -> Result<Comparison, CompareError> {
    let pairs = Pairs::of(a, b)?;
    let right = || pairs.answered().map(|(a, b)| (a.right(), b.right()));
    let only = |which: (bool, bool)| right().filter(|&pair| pair == which).count();
    let errors = || pairs.read().map(|[a, b]| (a.absolute_error, b.absolute_error));
    Ok(Comparison {
        task: a.report.task.clone(),
        split: a.report.split.clone(),
        a: Side::of(a),
        b: Side::of(b),
        counts: pairs.counts(),
        settings: setting_differences(a, b),
        resamples: bootstrap.resamples,
        seed: bootstrap.seed,
        metrics: measures::groups(&pairs).iter().flat_map(|group| differences(group, bootstrap)).collect(),
        mcnemar: right().next().map(|_| mcnemar(only((true, false)), only((false, true)))),
        sign_test: errors().next().map(|_| sign_test(errors())),
        items: pairs.largest_differences(items),
    })
}

/// All figures of a group, from the same resamples.
fn differences(group: &Group, bootstrap: Bootstrap) -> Vec<Difference> {
    let plain = vec![1.0; group.n];
    let shown: Vec<(&Measured, f64, f64)> = group
        .measured
        .iter()
        .filter_map(|measured| Some((measured, (measured.a)(&plain)?, (measured.b)(&plain)?)))
        .collect();
    let resampled = bootstrap.resample_in_parallel(group.n, |weights| {
        shown.iter().map(|(measured, ..)| measured.difference(weights)).collect::<Vec<_>>()
    });
    let difference = |(index, &(measured, a, b)): (usize, &(&Measured, f64, f64))| {
        let tested = test_resampled(b - a, resampled.iter().map(|values| values[index]));
        let mut difference = Difference {
            name: measured.name.clone(),
            better: better(&measured.name),
            a,
            b,
            difference: b - a,
            interval: tested.map(|tested| tested.interval),
            p: tested.map(|tested| tested.p),
            n: group.n,
            verdict: String::new(),
        };
        difference.verdict = render::verdict(&difference);
        difference
    };
    shown.iter().enumerate().map(difference).collect()
}

#[cfg(test)]
mod tests;

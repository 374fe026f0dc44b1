//! Ranks many runs: one table for each set of items that several runs answered, with a paired test of every
//! run against the best one.
//!
//! In: the runs below a directory. Out: [`Leaderboard`]s, and their page.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use indexmap::{IndexMap, IndexSet};
use serde::Serialize;
use serde_json::Value;

use super::measures::{Group, groups};
use super::pairs::Pairs;
use super::{CompareError, Difference, Format, differences};
use crate::error::OutputError;
use crate::format::{count, interval, number, optional_number, p_value};
use crate::metrics::Metric;
use crate::metrics::registry::{Better, better, find, in_table_order};
use crate::report::document::{Block, Cell, Document, Section, Table, numbers, row, words};
use crate::report::tables::estimates_of;
use crate::report::{index_page, markdown, write_pages};
use crate::stats::bootstrap::Bootstrap;
use crate::stats::difference::{LEVEL, PValue};
use crate::stats::holm::holm;
use crate::store::saved::{Run, run_folders};

/// The names of the pages, the main one first.
const PAGES: [&str; 2] = ["leaderboard.html", "leaderboard.md"];

/// Maximum number of metrics in a table, without the one that ranks the runs.
const OTHER_METRICS: usize = 6;

#[derive(Debug, Clone, PartialEq)]
pub struct LeaderboardSettings {
    pub bootstrap: Bootstrap,
    /// The metric that ranks the runs. Without it, the metric that the runs show first.
    pub metric: Option<String>,
    pub format: Format,
}

/// The runs over the same items, the best one first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Leaderboard {
    pub task: String,
    pub split: String,
    /// Number of items.
    pub items: usize,
    /// The metric that ranks the runs.
    pub metric: String,
    pub better: Better,
    /// Number of runs that are tested against the best one, for which Holm's method corrects the p-values.
    pub tests: usize,
    pub standings: Vec<Standing>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// The directory of the run.
    pub run: String,
    pub model: String,
    pub mode: String,
    #[serde(flatten)]
    pub metric: Metric,
    /// The difference from the best run. Missing for the best run itself, and without a value.
    pub behind: Option<Behind>,
}

/// How a run differs from the best one, on the items that both answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Behind {
    /// The value of the run minus that of the best one.
    pub difference: f64,
    /// Two-sided p-value of no difference, corrected for the number of runs. Missing if there are too few
    /// items.
    pub p_holm: Option<f64>,
    /// Whether `p_holm` is only an upper bound.
    pub p_holm_is_bound: bool,
}

/// Ranks the runs below a directory, writes the page there, and prints the tables.
pub fn write(folder: &Path, settings: &LeaderboardSettings, out: &mut dyn Write) -> anyhow::Result<()> {
    let runs = run_folders(folder)?.iter().map(|run| Run::load(run)).collect::<Result<Vec<_>, _>>()?;
    if runs.is_empty() {
        bail!("{} holds no report.json", folder.display());
    }
    let mut boards = Vec::new();
    for runs in groups_of_runs(&runs) {
        boards.push((rank(&runs, settings)?, runs));
    }
    let sections = boards.iter().map(|(board, runs)| section(board, runs, folder)).collect();
    let document = Document {
        title: "Leaderboard".to_owned(),
        subtitle: format!("{} runs", count(runs.len())),
        sections,
    };
    let files = write_pages(folder, PAGES, &document)?;
    let print = |out: &mut dyn Write| -> std::io::Result<()> {
        match settings.format {
            Format::Json => {
                let boards: Vec<&Leaderboard> = boards.iter().map(|(board, _)| board).collect();
                serde_json::to_writer(&mut *out, &boards)?;
                writeln!(out)
            }
            Format::Markdown => write!(out, "{}", markdown::render(&document)),
            Format::Text => {
                for section in &document.sections {
                    writeln!(out, "{}\n{}\n", section.title, markdown::plain_section(section))?;
                }
                files.iter().try_for_each(|file| writeln!(out, "{}", file.display()))
            }
        }
    };
    Ok(print(out).map_err(OutputError)?)
}

/// Returns the runs in groups with the same task, split and items, in the order of their directories.
fn groups_of_runs(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: IndexMap<(&str, &str, Option<&Value>, usize), Vec<&Run>> = IndexMap::new();
    for run in runs {
        let report = &run.report;
        // The hash of the questions and answers, which other programs do not write.
        let items = report.settings.get("items");
        groups.entry((&report.task, &report.split, items, report.n)).or_default().push(run);
    }
    groups.into_values().collect()
}

/// Sorts runs over the same items by a metric, and tests each of them against the best one.
fn rank(runs: &[&Run], settings: &LeaderboardSettings) -> Result<Leaderboard, CompareError> {
    let metric = settings.metric.clone().unwrap_or_else(|| ranking_metric(runs));
    let better = better(&metric);
    let value = |run: &&Run| run.report.metrics.get(&metric).value;
    let mut sorted = runs.to_vec();
    sorted.sort_by(|a, b| match (value(a), value(b)) {
        (Some(a), Some(b)) if better == Better::Lower => a.total_cmp(&b),
        (Some(a), Some(b)) => b.total_cmp(&a),
        // Runs without a value are the last ones.
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
    let best = sorted.first().copied().filter(|run| value(run).is_some());
    let tested = |run: &&Run| match best {
        Some(best) if !std::ptr::eq(best, *run) && value(run).is_some() => {
            difference(best, run, &metric, settings.bootstrap)
        }
        _ => Ok(None),
    };
    let differences = sorted.iter().map(tested).collect::<Result<Vec<_>, _>>()?;
    let p_value =
        |difference: &Difference| Some(PValue { value: difference.p?, is_bound: difference.p_is_bound });
    let p_values: Vec<PValue> = differences.iter().flatten().filter_map(p_value).collect();
    let mut corrected = holm(&p_values).into_iter();
    let mut behind = |difference: Option<Difference>| {
        let difference = difference?;
        let p = p_value(&difference).and_then(|_| corrected.next());
        Some(Behind {
            difference: difference.difference,
            p_holm: p.map(|p| p.value),
            p_holm_is_bound: p.is_some_and(|p| p.is_bound),
        })
    };
    let standing = |(run, difference): (&&Run, Option<Difference>)| Standing {
        run: run.folder.display().to_string(),
        model: run.report.model.clone(),
        mode: run.report.mode.clone(),
        metric: run.report.metrics.get(&metric),
        behind: behind(difference),
    };
    let standings: Vec<Standing> = sorted.iter().zip(differences).map(standing).collect();
    let first = runs.first().map(|run| &run.report);
    Ok(Leaderboard {
        task: first.map_or_else(String::new, |report| report.task.clone()),
        split: first.map_or_else(String::new, |report| report.split.clone()),
        items: first.map_or(0, |report| report.n),
        better,
        tests: p_values.len(),
        standings,
        metric,
    })
}

/// Returns the metric that the largest number of runs have. Metrics that the runs show first are preferred to
/// others, which are in table order. A metric must have a better direction.
fn ranking_metric(runs: &[&Run]) -> String {
    let shown = runs.iter().flat_map(|run| run.report.first_metrics.iter().map(String::as_str));
    let all = runs.iter().flat_map(|run| run.report.metrics.iter().map(|(name, _)| name));
    let candidates = shown.chain(in_table_order(all)).filter(|name| better(name) != Better::Unknown);
    let having = |name: &str| runs.iter().filter(|run| run.report.metrics.get(name).value.is_some()).count();
    // `max_by_key` returns the last of several equals.
    let candidates: Vec<&str> = candidates.collect();
    candidates.into_iter().rev().max_by_key(|name| having(name)).unwrap_or("accuracy").to_owned()
}

/// Returns how a run differs from the best one. `None` if the metric cannot be computed from samples.
fn difference(
    best: &Run,
    run: &Run,
    metric: &str,
    bootstrap: Bootstrap,
) -> Result<Option<Difference>, CompareError> {
    let pairs = Pairs::of(best, run)?;
    let only = |group: Group| Group {
        measured: group.measured.into_iter().filter(|measured| measured.name == metric).collect(),
        ..group
    };
    let of_metric = groups(&pairs).into_iter().map(only).filter(|group| !group.measured.is_empty());
    Ok(of_metric.flat_map(|group| differences(group, bootstrap)).next())
}

/// Returns the tables of a leaderboard: the runs, and the ranking metric of each module.
fn section(board: &Leaderboard, runs: &[&Run], folder: &Path) -> Section {
    let run_of = |standing: &Standing| {
        runs.iter().copied().find(|run| run.folder.display().to_string() == standing.run)
    };
    let ranked: Vec<&Run> = board.standings.iter().filter_map(run_of).collect();
    let shown = ranked.iter().flat_map(|run| run.report.metrics_to_show());
    let others = shown
        .filter(|(name, metric)| *name != board.metric && find(name).is_some() && metric.value.is_some());
    let others: IndexSet<&str> = others.map(|(name, _)| name).collect();
    let others: Vec<&str> = others.into_iter().take(OTHER_METRICS).collect();
    let columns = [
        numbers(&["rank"]),
        words(&["run", "model", "mode"]),
        numbers(&[board.metric.as_str(), "95% interval", "minus the best", "p (Holm)"]),
        numbers(&others),
    ];
    let rows = (1..).zip(&board.standings).zip(&ranked).map(|((rank, standing), run)| {
        let metric = standing.metric;
        let text = optional_number(metric.value);
        let behind = standing.behind.as_ref();
        let p = behind.and_then(|behind| Some(p_value(behind.p_holm?, behind.p_holm_is_bound)));
        let mut row = row![
            metric.value.map_or_else(String::new, |_| rank.to_string()),
            index_page::link(folder, run),
            &standing.model,
            &standing.mode,
            if rank == 1 { Cell::strong(text) } else { text.into() },
            metric.interval().map_or_else(String::new, interval),
            behind.map_or_else(String::new, |behind| number(behind.difference)),
            p.unwrap_or_default(),
        ];
        row.extend(
            others
                .iter()
                .map(|name| Cell::from(run.report.metrics.get(name).value.map_or_else(String::new, number))),
        );
        row
    });
    let mut blocks = vec![
        Block::Table(Table::new(columns, rows).without_empty_columns()),
        Block::Paragraph(method(board, &others)),
    ];
    let modules = modules(board, &ranked);
    if !modules.rows.is_empty() {
        blocks.push(Block::Folded(format!("{} of each module, by rank", board.metric), modules));
    }
    let items = count(board.items);
    Section::new(&format!("{} {}, {items} items", board.task, board.split), blocks)
}

fn method(board: &Leaderboard, others: &[&str]) -> String {
    let direction = match board.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
        Better::Unknown => "neither direction is better as such",
    };
    let tests = match board.tests {
        0 => String::new(),
        tests => format!(
            " Each run is tested against the best one on the items that both answered (permutation test and paired bootstrap). The \
             p-values are corrected for {} {}; above {LEVEL} no difference is shown.",
            count(tests),
            if tests == 1 { "test" } else { "tests" }
        ),
    };
    let shown = std::iter::once(board.metric.as_str()).chain(others.iter().copied());
    let estimates = estimates_of(shown).map_or_else(String::new, |sentence| format!(" {sentence}"));
    format!("Ranked by {} ({direction}).{tests}{estimates}", board.metric)
}

/// Returns a row for each module and a column for each run. Empty if the runs have no modules.
fn modules(board: &Leaderboard, ranked: &[&Run]) -> Table {
    let titles: Vec<String> = (1..=ranked.len()).map(|rank| rank.to_string()).collect();
    let names = ranked.first().map(|run| run.report.modules.keys()).into_iter().flatten();
    let value = |run: &Run, name: &str| run.report.modules.get(name)?.metrics.get(&board.metric).value;
    let rows = names.map(|name| {
        let mut row = row![name];
        row.extend(ranked.iter().map(|run| Cell::from(optional_number(value(run, name)))));
        row
    });
    Table::new([words(&["module"]), numbers(&titles)], rows)
}

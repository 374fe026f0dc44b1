//! Ranks many runs: one table for each set of items that several runs answered, with a paired test of every
//! run against the best one.
//!
//! In: the runs below a directory. Out: [`Leaderboard`]s, and their page.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use indexmap::{IndexMap, IndexSet};
use serde::Serialize;
use serde_json::Value;

use super::measures::groups;
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
    let written = match settings.format {
        Format::Json => {
            let boards: Vec<&Leaderboard> = boards.iter().map(|(board, _)| board).collect();
            write_json(&boards, out)
        }
        Format::Markdown => write!(out, "{}", markdown::render(&document)),
        Format::Text => write_text(&document, &files, out),
    };
    Ok(written.map_err(OutputError)?)
}

fn write_json(boards: &[&Leaderboard], out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, boards)?;
    writeln!(out)
}

fn write_text(document: &Document, files: &[PathBuf], out: &mut dyn Write) -> io::Result<()> {
    for section in &document.sections {
        writeln!(out, "{}\n{}\n", section.title, markdown::plain_section(section))?;
    }
    files.iter().try_for_each(|file| writeln!(out, "{}", file.display()))
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
    let mut sorted: Vec<(Option<f64>, &Run)> = Vec::with_capacity(runs.len());
    for run in runs {
        sorted.push((run.report.metrics.get(&metric).value, run));
    }
    sorted.sort_by(|(a, _), (b, _)| match (*a, *b) {
        (Some(a), Some(b)) if better == Better::Lower => a.total_cmp(&b),
        (Some(a), Some(b)) => b.total_cmp(&a),
        // Runs without a value are the last ones.
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
    let mut standings = Vec::with_capacity(sorted.len());
    let mut p_values = Vec::new();
    for (rank, (value, run)) in sorted.iter().enumerate() {
        let behind = match (rank, value, sorted.first()) {
            (1.., Some(_), Some((_, best))) => difference(best, run, &metric, settings.bootstrap)?,
            _ => None,
        };
        if let Some(Difference { p: Some(value), p_is_bound, .. }) = behind {
            p_values.push(PValue { value, is_bound: p_is_bound });
        }
        standings.push(Standing {
            run: run.folder.display().to_string(),
            model: run.report.model.clone(),
            mode: run.report.mode.clone(),
            metric: run.report.metrics.get(&metric),
            behind: behind.map(|behind| Behind {
                difference: behind.difference,
                p_holm: behind.p,
                p_holm_is_bound: behind.p_is_bound,
            }),
        });
    }
    let tested = standings.iter_mut().filter_map(|standing| standing.behind.as_mut());
    for (behind, corrected) in tested.filter(|behind| behind.p_holm.is_some()).zip(holm(&p_values)) {
        behind.p_holm = Some(corrected.value);
        behind.p_holm_is_bound = corrected.is_bound;
    }
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
    let mut ranking: Option<(&str, usize)> = None;
    for name in shown.chain(in_table_order(all)).filter(|name| better(name) != Better::Unknown) {
        let having = runs.iter().filter(|run| run.report.metrics.get(name).value.is_some()).count();
        if ranking.is_none_or(|(_, most)| having > most) {
            ranking = Some((name, having));
        }
    }
    ranking.map_or("accuracy", |(name, _)| name).to_owned()
}

/// Returns how a run differs from the best one. `None` if the metric cannot be computed from samples.
fn difference(
    best: &Run,
    run: &Run,
    metric: &str,
    bootstrap: Bootstrap,
) -> Result<Option<Difference>, CompareError> {
    let pairs = Pairs::of(best, run)?;
    for mut group in groups(&pairs) {
        group.measured.retain(|measured| measured.name == metric);
        if let Some(difference) = differences(group, bootstrap).into_iter().next() {
            return Ok(Some(difference));
        }
    }
    Ok(None)
}

/// Returns the tables of a leaderboard: the runs, and the ranking metric of each module.
fn section(board: &Leaderboard, runs: &[&Run], folder: &Path) -> Section {
    let mut ranked: Vec<&Run> = Vec::with_capacity(runs.len());
    for standing in &board.standings {
        ranked.extend(runs.iter().find(|run| run.folder.display().to_string() == standing.run));
    }
    let mut others: IndexSet<&str> = IndexSet::new();
    for (name, metric) in ranked.iter().flat_map(|run| run.report.metrics_to_show()) {
        if name != board.metric && find(name).is_some() && metric.value.is_some() {
            others.insert(name);
        }
    }
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
    let rows = names.map(|name| {
        let mut row = row![name];
        for run in ranked {
            let module = run.report.modules.get(name);
            let value = module.and_then(|module| module.metrics.get(&board.metric).value);
            row.push(Cell::from(optional_number(value)));
        }
        row
    });
    Table::new([words(&["module"]), numbers(&titles)], rows)
}

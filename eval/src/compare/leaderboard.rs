//! Ranks many runs: one table for each set of items that several runs answered, with simultaneous intervals
//! of the differences between all runs.
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
use super::{CompareError, Format};
use crate::error::OutputError;
use crate::format::{count, interval, number, optional_number};
use crate::metrics::Metric;
use crate::metrics::registry::{Better, Statistic, better, find, in_table_order};
use crate::report::document::{Block, Cell, Document, Section, Table, numbers, row, words};
use crate::report::tables::estimates_of;
use crate::report::{index_page, markdown, write_pages};
use crate::stats::Interval;
use crate::stats::bootstrap::Bootstrap;
use crate::stats::difference::Contrast;
use crate::stats::simultaneous::simultaneous_intervals;
use crate::store::sample::Sample;
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
    /// Number of items that all runs with this metric answered, over which they are compared.
    pub compared: usize,
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
    /// The first and the last rank that the intervals of all differences allow. Missing if no difference has
    /// an interval.
    pub ranks: Option<[usize; 2]>,
    /// The difference from the best run. Missing for the best run itself, and without a value.
    pub behind: Option<Behind>,
}

/// How a run differs from the best one, on the items that all runs answered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Behind {
    /// The value of the run minus that of the best one.
    pub difference: f64,
    /// All intervals of a leaderboard hold together with a probability of 95%. Missing if there are too few
    /// items.
    #[serde(flatten)]
    pub interval: Option<Interval>,
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

/// Sorts runs over the same items by a metric, and compares all of them.
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
    let valued: Vec<&Run> = sorted.iter().filter(|(value, _)| value.is_some()).map(|(_, run)| *run).collect();
    let differences = Differences::of(&valued, &metric, settings.bootstrap)?;
    let mut standings = Vec::with_capacity(sorted.len());
    for (index, (value, run)) in sorted.iter().enumerate() {
        standings.push(Standing {
            run: run.folder.display().to_string(),
            model: run.report.model.clone(),
            mode: run.report.mode.clone(),
            metric: run.report.metrics.get(&metric),
            ranks: if value.is_some() { differences.ranks(index, better) } else { None },
            behind: if index > 0 { differences.between(0, index) } else { None },
        });
    }
    let first = runs.first().map(|run| &run.report);
    Ok(Leaderboard {
        task: first.map_or_else(String::new, |report| report.task.clone()),
        split: first.map_or_else(String::new, |report| report.split.clone()),
        items: first.map_or(0, |report| report.n),
        better,
        compared: differences.items,
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

/// The differences between all runs of a leaderboard.
struct Differences {
    /// Number of items that all runs answered.
    items: usize,
    runs: usize,
    /// The later run minus the earlier one, for the pairs (0, 1), (0, 2), ..., (1, 2), .... Empty if the
    /// metric cannot be computed from samples.
    pairs: Vec<Behind>,
}

impl Differences {
    fn of(runs: &[&Run], metric: &str, bootstrap: Bootstrap) -> Result<Self, CompareError> {
        let samples = runs.iter().map(|run| run.samples.len()).min().unwrap_or(0);
        let mut common = Vec::with_capacity(samples);
        for index in 0..samples {
            common.push(runs.iter().all(|run| has(&run.samples[index], metric)));
        }
        let mut contrasts = Vec::new();
        let mut items = 0;
        for (index, a) in runs.iter().enumerate() {
            for b in &runs[index + 1..] {
                let Some((contrast, n)) = contrast(Pairs::of(a, b)?.only(&common), metric) else {
                    return Ok(Self { items: 0, runs: runs.len(), pairs: Vec::new() });
                };
                contrasts.push(contrast);
                items = n;
            }
        }
        let intervals = simultaneous_intervals(&contrasts, items, bootstrap);
        let plain = vec![1.0; items];
        let mut pairs = Vec::with_capacity(contrasts.len());
        for (contrast, interval) in contrasts.iter().zip(intervals) {
            let Some([a, b]) = contrast.sides(&plain) else {
                return Ok(Self { items: 0, runs: runs.len(), pairs: Vec::new() });
            };
            pairs.push(Behind { difference: b - a, interval });
        }
        Ok(Self { items, runs: runs.len(), pairs })
    }

    /// Returns run `b` minus run `a`, which has a lower index.
    fn between(&self, a: usize, b: usize) -> Option<Behind> {
        if b >= self.runs {
            return None;
        }
        let before = a * (2 * self.runs - a - 1) / 2;
        self.pairs.get(before + b - a - 1).copied()
    }

    /// Returns the first and the last rank of a run that its intervals allow (Mogstad, Romano, Shaikh and
    /// Wilhelm 2024).
    fn ranks(&self, run: usize, better: Better) -> Option<[usize; 2]> {
        let mut ranks = [1, self.runs];
        let mut has_interval = false;
        for other in (0..self.runs).filter(|other| *other != run) {
            let Some(Behind { interval: Some(Interval { low, high }), .. }) =
                self.between(run.min(other), run.max(other))
            else {
                continue;
            };
            has_interval = true;
            let later_is_better = if better == Better::Lower { high < 0.0 } else { low > 0.0 };
            let earlier_is_better = if better == Better::Lower { low > 0.0 } else { high < 0.0 };
            let [worse, best] = if other > run {
                [earlier_is_better, later_is_better]
            } else {
                [later_is_better, earlier_is_better]
            };
            ranks[0] += usize::from(best);
            ranks[1] -= usize::from(worse);
        }
        has_interval.then_some(ranks)
    }
}

/// Returns whether a sample has the data of a metric.
fn has(sample: &Sample, metric: &str) -> bool {
    match find(metric).map(|info| &info.statistic) {
        Some(Statistic::Number(_) | Statistic::RelativeNumber(_) | Statistic::Rating(_)) => {
            sample.prediction().is_some()
        }
        Some(Statistic::Options(_)) => !sample.failed() && sample.score("confidence").is_some(),
        _ => !sample.failed() && sample.score(metric).is_some(),
    }
}

/// Returns the difference of a metric and its number of items. `None` if it cannot be computed from samples.
fn contrast(pairs: Pairs<'_>, metric: &str) -> Option<(Contrast<'static>, usize)> {
    for group in groups(&pairs) {
        let n = group.n;
        if let Some(found) = group.measured.into_iter().find(|measured| measured.name == metric) {
            return Some((found.contrast, n));
        }
    }
    None
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
        numbers(&[board.metric.as_str(), "95% interval", "minus the best", "simultaneous", "ranks"]),
        numbers(&others),
    ];
    let rows = (1..).zip(&board.standings).zip(&ranked).map(|((rank, standing), run)| {
        let metric = standing.metric;
        let text = optional_number(metric.value);
        let behind = standing.behind.as_ref();
        let mut row = row![
            metric.value.map_or_else(String::new, |_| rank.to_string()),
            index_page::link(folder, run),
            &standing.model,
            &standing.mode,
            if rank == 1 { Cell::strong(text) } else { text.into() },
            metric.interval().map_or_else(String::new, interval),
            behind.map_or_else(String::new, |behind| number(behind.difference)),
            behind.and_then(|behind| behind.interval).map_or_else(String::new, interval),
            standing.ranks.map_or_else(String::new, |[low, high]| format!("{low} to {high}")),
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
    let compared = if board.standings.iter().any(|standing| standing.ranks.is_some()) {
        format!(
            " The differences cover the {} items that all runs answered. Their intervals (max-t bootstrap) and the ranks \
             that these allow hold together with a probability of 95%.",
            count(board.compared)
        )
    } else {
        String::new()
    };
    let shown = std::iter::once(board.metric.as_str()).chain(others.iter().copied());
    let estimates = estimates_of(shown).map_or_else(String::new, |sentence| format!(" {sentence}"));
    format!("Ranked by {} ({direction}).{compared}{estimates}", board.metric)
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

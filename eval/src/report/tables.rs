//! The tables of one run's page.

use serde_json::json;

use super::document::{Cell, Table, literal, numbers, row, words};
use crate::format::{count, interval, number, optional_number, p_value, shortened};
use crate::metrics::Metrics;
use crate::metrics::estimates::AllEstimates;
use crate::metrics::registry::{Estimate, find};
use crate::stats::Interval;
use crate::stats::difference::ITEMS_MIN;
use crate::store::report::{Report, flat_settings};
use crate::store::sample::{Sample, plain};
use crate::store::saved::Run;

/// Number of items in the table of largest errors.
const LARGEST_ERRORS: usize = 20;
/// Number of metrics in the table of modules, if the run has metrics that are shown first.
const MODULE_METRICS: usize = 5;
/// Number of items in the table of items without a number.
const UNREAD: usize = 10;

pub(super) fn metrics(report: &Report) -> Table {
    let columns = [
        words(&["metric"]),
        numbers(&["value", "95% interval", "over"]),
        words(&["estimate", "baselines", "meaning"]),
    ];
    let rows = report.printed_metrics().into_iter().map(|(name, metric)| {
        row![
            name,
            Cell::strong(optional_number(metric.value)),
            metric.interval().map_or_else(String::new, interval),
            format!("{} of {}", count(metric.n), count(report.n)),
            report.estimate_of(name).unwrap_or_default(),
            baselines(report, name),
            find(name).map_or("", |known| known.about),
        ]
    });
    Table::new(columns, rows).without_empty_columns()
}

/// Returns the values of a metric for the constant answers.
fn baselines(report: &Report, metric: &str) -> String {
    let constants = report.baselines.iter().filter(|(_, baseline)| baseline.value.is_some());
    let reached = constants.filter_map(|(name, baseline)| {
        let reached = baseline.metrics.get(metric);
        // A constant also has errors on the items without a predicted number.
        let is_same = reached.n == report.metrics.get(metric).n;
        let over = if is_same { String::new() } else { format!(" (over {})", count(reached.n)) };
        Some(format!("{} {}{over}", name.replace('_', " "), number(reached.value?)))
    });
    reached.collect::<Vec<_>>().join(", ")
}

/// Returns the cost of the answers. Empty if the server does not report it.
pub(super) fn cost(report: &Report) -> Table {
    let rows = report.cost.iter().map(|(name, figure)| {
        let over = format!("{} of {}", count(figure.n), count(report.n));
        row![name.replace('_', " "), number(figure.per_item), figure.total.to_string(), over]
    });
    Table::new([words(&["cost"]), numbers(&["per item", "total", "over"])], rows)
}

/// Compares the run with simple methods by the metrics that are shown first. Empty if the items have no
/// predictions of such methods.
pub(super) fn methods(report: &Report) -> Table {
    let shown = headlines(report);
    let mut rows = Vec::new();
    for (name, baseline) in &report.baselines {
        if baseline.value.is_none() {
            rows.push(figures(Cell::from(name.replace('_', " ")), &baseline.metrics, &shown));
        }
    }
    if !rows.is_empty() {
        rows.insert(0, figures(Cell::strong("this run"), &report.metrics, &shown));
    }
    let titles: Vec<String> = shown.iter().map(|name| report.title_of(name)).collect();
    Table::new([words(&["method"]), numbers(&titles)], rows)
}

/// Returns a row with the values of some metrics.
fn figures(title: Cell, metrics: &Metrics, shown: &[&str]) -> Vec<Cell> {
    let mut row = vec![title];
    for name in shown {
        row.push(Cell::from(optional_number(metrics.get(name).value)));
    }
    row
}

/// Returns the names of the known metrics that are shown first.
fn headlines(report: &Report) -> Vec<&'static str> {
    report.first_metrics.iter().filter_map(|name| Some(find(name)?.name)).collect()
}

/// Returns the metrics to show of each module: the run's first metrics, or `default` if there are none.
pub(super) fn module_metrics(report: &Report, default: &[&'static str]) -> Vec<&'static str> {
    let mut shown = headlines(report);
    if shown.is_empty() {
        return default.to_vec();
    }
    shown.truncate(MODULE_METRICS);
    shown
}

/// Returns one row per metric, with the best estimate in bold, and the estimate that the run uses for it.
/// Empty if too few items have distributions.
pub(super) fn estimates(report: &Report) -> Table {
    let columns = [
        words(&["metric"]),
        numbers(&["mode", "median", "trimmed mean", "mean", "weighted sum"]),
        words(&["used"]),
        numbers(&["used - mode", "95% interval", "p"]),
    ];
    let mut rows = Vec::new();
    if report.estimated() < ITEMS_MIN {
        return Table::new(columns, rows);
    }
    for (metric, scores) in &report.estimates {
        let names = scores.best_names();
        let [mode, median, trimmed_mean, mean, weighted_sum] = AllEstimates::NAMES.map(|name| {
            let text = optional_number(scores.values.get(name).and_then(|metric| metric.value));
            if names.contains(&name) { Cell::strong(text) } else { text.into() }
        });
        let against_mode = report.estimate_name(metric).and_then(|used| scores.against_mode.get(used));
        let range = against_mode.and_then(|found| Some(Interval { low: found.low?, high: found.high? }));
        let p = against_mode.and_then(|found| Some(p_value(found.p_holm?, found.p_holm_is_bound)));
        rows.push(row![
            metric,
            mode,
            median,
            trimmed_mean,
            mean,
            weighted_sum,
            report.estimate_of(metric).unwrap_or_default(),
            against_mode.map_or_else(String::new, |found| number(found.difference)),
            range.map_or_else(String::new, interval),
            p.unwrap_or_default(),
        ]);
    }
    Table::new(columns, rows)
}

/// Returns a sentence that names the estimate of each of these metrics in runs with distributions. `None` if
/// none of them is computed from an estimate.
pub fn estimates_of<'a>(metrics: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    let mut parts = Vec::new();
    for (estimate, name) in [
        (Estimate::Mode, "the mode"),
        (Estimate::Median, "the median"),
        (Estimate::Mean, "the trimmed mean (or the estimate that `settings.estimates` names)"),
    ] {
        let mut metrics: Vec<&str> = metrics.clone().collect();
        metrics.retain(|metric| find(metric).and_then(|info| info.estimate) == Some(estimate));
        if !metrics.is_empty() {
            parts.push(format!("{name} for {}", metrics.join(", ")));
        }
    }
    (!parts.is_empty()).then(|| format!("Runs in regress mode use {}.", parts.join("; ")))
}

pub(super) fn quirks(report: &Report) -> Table {
    let rows = report.quirks.iter().map(|quirk| {
        let [paper, corrected] =
            [quirk.paper, quirk.corrected].map(|value| value.map_or_else(String::new, number));
        row![&quirk.name, paper, corrected, &quirk.note]
    });
    Table::new(
        [words(&["metric"]), numbers(&["paper", "corrected"]), words(&["what the paper's code does"])],
        rows,
    )
}

/// Returns one row per module. Empty for a single module, whose figures equal those of the run.
pub(super) fn modules(report: &Report) -> Table {
    let shown = module_metrics(report, &["accuracy", "mae", "log_mae"]);
    let (first, others) = shown.split_at(1);
    let titles: Vec<String> = shown.iter().map(|name| report.title_of(name)).collect();
    let (first_titles, other_titles) = titles.split_at(1);
    let columns = [
        words(&["module"]),
        numbers(first_titles),
        numbers(&["95% interval"]),
        numbers(other_titles),
        numbers(&["with a number"]),
    ];
    let mut rows = Vec::new();
    if report.modules.len() > 1 {
        for (name, module) in &report.modules {
            let mut row = figures(Cell::from(name.as_str()), &module.metrics, first);
            let intervals = first.iter().filter_map(|name| module.metrics.get(name).interval());
            row.push(Cell::from(intervals.map(interval).collect::<String>()));
            for name in others {
                row.push(Cell::from(optional_number(module.metrics.get(name).value)));
            }
            row.push(Cell::from(format!("{} of {}", count(module.n_valid), count(module.n))));
            rows.push(row);
        }
    }
    Table::new(columns, rows).without_empty_columns()
}

/// Returns the items with the largest errors, or nothing if all are exact. Unbounded items without a value
/// sort first.
pub(super) fn largest_errors(run: &Run) -> Table {
    let mut wrong: Vec<(f64, &Sample)> = Vec::new();
    for sample in &run.samples {
        match sample.absolute_error() {
            Some(error) if error > 0.0 => wrong.push((error, sample)),
            None if sample.is_unbounded() => wrong.push((f64::INFINITY, sample)),
            _ => {}
        }
    }
    wrong.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    // Absolute errors are computed from medians.
    let predicted = if run.report.mode == "regress" { "median" } else { "predicted" };
    let columns = [
        numbers(&["item"]),
        literal(&["question"]),
        numbers(&["truth", predicted, "error"]),
        literal(&["answer"]),
        words(&["unbounded"]),
    ];
    let rows = wrong.into_iter().take(LARGEST_ERRORS).map(|(error, sample)| {
        row![
            sample.doc_id.to_string(),
            shortened(&sample.doc.question, 160),
            sample.truth().map_or_else(|| sample.target_text(), number),
            optional_number(sample.prediction.map(|read| read.median)),
            optional_number(Some(error).filter(|error| error.is_finite())),
            shortened(&sample.response(), 120),
            if sample.is_unbounded() {
                plain(sample.more.get("number_reason").unwrap_or(&json!("yes")))
            } else {
                String::new()
            },
        ]
    });
    Table::new(columns, rows).without_empty_columns()
}

/// Returns the first items without a number, with their answers.
pub(super) fn unread(run: &Run) -> Table {
    let columns = [numbers(&["item"]), literal(&["question", "truth", "answer"]), words(&["error"])];
    let unread = run
        .samples
        .iter()
        .filter(|sample| sample.asks_number() && !sample.is_decision() && sample.prediction.is_none());
    let rows = unread.take(UNREAD).map(|sample| {
        row![
            sample.doc_id.to_string(),
            shortened(&sample.doc.question, 160),
            shortened(&sample.target_text(), 60),
            shortened(&sample.response(), 160),
            shortened(sample.error.as_deref().unwrap_or_default(), 160),
        ]
    });
    Table::new(columns, rows).without_empty_columns()
}

pub(super) fn settings(report: &Report) -> Table {
    let own = [
        ("model", report.model.clone()),
        ("endpoint", report.endpoint.clone()),
        ("mode", report.mode.clone()),
        ("seed", report.seed.map_or_else(String::new, |seed| seed.to_string())),
        ("started", report.started.clone()),
        ("seconds", number(report.seconds)),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value)).into_iter();
    let all =
        own.chain(flat_settings("", &report.settings)).chain(flat_settings("version of ", &report.versions));
    let rows =
        all.filter(|(_, value)| !value.is_empty()).map(|(name, value)| row![name, shortened(&value, 200)]);
    Table::new([words(&["setting"]), literal(&["value"])], rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::markdown::table;
    use crate::store::saved::tests::run;

    #[test]
    fn the_metric_table_has_intervals_baselines_and_no_empty_columns() {
        let report: Report = serde_json::from_value(json!({
            "n": 1200,
            "metrics": {
                "rmse": { "value": 1.8111, "low": null, "high": null, "n": 1100 },
                "accuracy": { "value": 0.25, "low": 0.2, "high": 0.3, "n": 1200 },
            },
            "baselines": { "constant_mean": { "value": 1.6, "rmse": { "value": 1.829, "n": 1200 } } },
        }))
        .unwrap();
        insta::assert_snapshot!(table(&metrics(&report)), @r##"
        | metric   |      value |     95% interval |           over | baselines                        | meaning                              |
        |----------|------------|------------------|----------------|----------------------------------|--------------------------------------|
        | accuracy | **0.2500** | 0.2000 to 0.3000 | 1,200 of 1,200 |                                  | share of items whose answer is right |
        | rmse     |  **1.811** |                  | 1,100 of 1,200 | constant mean 1.829 (over 1,200) | root of the mean squared error       |
        "##);
    }

    #[test]
    fn the_largest_errors_sort_first_and_items_without_a_number_are_separate() {
        let run = run(&[(1.0, Some(1.0)), (2.0, Some(4.5)), (3.0, None), (4.0, Some(-6.0))]);
        insta::assert_snapshot!(table(&largest_errors(&run)), @r##"
        | item | question | truth | predicted | error | answer |
        |------|----------|-------|-----------|-------|--------|
        |    3 | `item 3` |     4 |        -6 |    10 | `said` |
        |    1 | `item 1` |     2 |     4.500 | 2.500 | `said` |
        "##);
        insta::assert_snapshot!(table(&unread(&run)), @r##"
        | item | question | truth | answer |
        |------|----------|-------|--------|
        |    2 | `item 2` | `3`   | `said` |
        "##);
    }

    #[test]
    fn nested_settings_are_named_with_both_names() {
        let report = json!({ "settings": { "request": { "temperature": 0.0 }, "data": "x" }, "versions": { "ntl-eval": "1" } });
        let table = settings(&serde_json::from_value(report).unwrap());
        let names: Vec<&str> = table.rows.iter().map(|row| row[0].text.as_str()).collect();
        assert_eq!(names, ["seconds", "request.temperature", "data", "version of ntl-eval"]);
    }
}

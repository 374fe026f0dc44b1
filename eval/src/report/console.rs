//! The report of a run on a terminal.

use std::io::{self, Write};

use super::corrections;
use super::document::{Cell, Table, numbers, row, words};
use super::markdown::plain_table;
use super::notes::{notes, warnings};
use super::tables::{self, module_metrics};
use crate::store::report::Report;

/// Writes the tables of a report: the metrics, and the modules and quirks if there are any.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Report { task, split, model, mode, n, n_valid, failed, .. } = report;
    writeln!(out, "{task} {split}: {model}, {mode} mode")?;
    writeln!(out, "{}", plain_table(&metrics(report)))?;
    for table in [
        tables::cost(report),
        tables::estimates(report),
        tables::methods(report),
        corrections::table(report),
        corrections::drift(report),
    ] {
        if !table.rows.is_empty() {
            writeln!(out, "{}", plain_table(&table))?;
        }
    }
    if report.modules.len() > 1 {
        writeln!(out, "{}", plain_table(&modules(report)))?;
    }
    if !report.quirks.is_empty() {
        writeln!(out, "{}", plain_table(&quirks(report)))?;
    }
    let mass = report.mass_closed.map_or(String::new(), |mass| format!("; closed mass {mass:.4}"));
    let unparsed = report.unparsed();
    let seconds = report.seconds;
    let counts = if report.may_be_refused() {
        format!("{n_valid} answered, {unparsed} refused")
    } else {
        format!("{n_valid} read, {unparsed} without a number")
    };
    writeln!(out, "{n} items: {counts}, {failed} failed; {seconds:.1} s{mass}")?;
    let (reasons, others) = report.main_reasons();
    for (reason, count) in reasons {
        writeln!(out, "no number for {count} of {n} items: {reason}")?;
    }
    if others > 0 {
        writeln!(
            out,
            "no number for {others} of {n} items: other reasons, see `number_reason` of the samples"
        )?;
    }
    for warning in warnings(report) {
        writeln!(out, "warning: {warning}")?;
    }
    for note in notes(report) {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

fn metrics(report: &Report) -> Table {
    let columns = [
        words(&["metric"]),
        numbers(&["value", "95% interval", "n"]),
        words(&["estimate"]),
        numbers(&["best constant"]),
    ];
    // If the server gives reasons why no item has a number, the reasons replace the metrics without a value.
    let mut metrics = report.printed_metrics();
    metrics.retain(|(name, metric)| {
        metric.value.is_some()
            || report.missing_numbers.is_empty()
            || report.first_metrics.iter().any(|first| first == name)
    });
    let rows = metrics.into_iter().map(|(name, metric)| {
        let interval = metric.interval().map_or_else(String::new, |interval| {
            format!("{} to {}", number(Some(interval.low)), number(Some(interval.high)))
        });
        let over = format!("{}/{}", metric.n, report.n);
        let estimate = report.estimate_of(name).unwrap_or_default();
        row![name, number(metric.value), interval, over, estimate, best_constant(report, name)]
    });
    Table::new(columns, rows).without_empty_columns()
}

/// Returns the value of a metric for the constant answer that is best for it. Empty if unknown.
fn best_constant(report: &Report, name: &str) -> String {
    let constant = match name {
        "accuracy" => "constant_mode",
        "mae" => "constant_median",
        "rmse" | "r2" => "constant_mean",
        _ => return String::new(),
    };
    let Some(baseline) = report.baselines.get(constant) else { return String::new() };
    let reached = baseline.metrics.get(name);
    let is_same = reached.n == report.metrics.get(name).n;
    let over = if is_same { String::new() } else { format!(" over {}", reached.n) };
    format!("{}{over}", number(reached.value))
}

fn modules(report: &Report) -> Table {
    let shown = module_metrics(report, &["accuracy", "mae", "log_mae", "mape"]);
    let titles: Vec<String> = shown.iter().map(|name| report.title_of(name)).collect();
    let columns = [words(&["module"]), numbers(&titles), numbers(&["n"])];
    let rows = report.modules.iter().map(|(name, module)| {
        let mut row = row![name];
        row.extend(shown.iter().map(|metric| Cell::from(number(module.metrics.get(metric).value))));
        row.push(Cell::from(module.n.to_string()));
        row
    });
    Table::new(columns, rows)
}

fn quirks(report: &Report) -> Table {
    let columns =
        [words(&["metric"]), numbers(&["paper's code", "corrected"]), words(&["what the paper's code does"])];
    let rows = report
        .quirks
        .iter()
        .map(|quirk| row![&quirk.name, number(quirk.paper), number(quirk.corrected), &quirk.note]);
    Table::new(columns, rows)
}

/// Formats a number with four decimals, and large and tiny numbers with an exponent.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 1e9 || (value.abs() < 1e-4 && value.abs() > 0.0) => {
            format!("{value:.3e}")
        }
        Some(value) => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::estimates::{AllEstimates, compare_estimates};
    use crate::metrics::{Estimates, Metrics, Outcome, Row, constant_baselines};
    use crate::store::report::Counts;
    use serde_json::json;

    #[test]
    fn numbers_stay_short() {
        for (value, want) in [
            (None, "-"),
            (Some(0.0), "0.0000"),
            (Some(12.34567), "12.3457"),
            (Some(3e12), "3.000e12"),
            (Some(-2e-7), "-2.000e-7"),
        ] {
            assert_eq!(number(value), want);
        }
    }

    /// Eight items that are read, one of them far off, one item without a number and one that failed.
    #[test]
    fn the_table_shows_every_figure_with_its_n_and_its_estimate() {
        let mut rows: Vec<Row> = (0..8)
            .map(|index| {
                let truth = f64::from(index);
                let mean = if index == 7 { 15.0 } else { truth + 0.5 + f64::from(index % 3) / 4.0 };
                let estimates = AllEstimates {
                    mode: truth + 1.0,
                    median: truth + f64::from(index % 2),
                    trimmed_mean: mean,
                    mean: mean + 0.25,
                    weighted_sum: mean / 2.0,
                };
                let outcome = Outcome::Read(Estimates {
                    mean,
                    median: truth + f64::from(index % 2),
                    mode: truth + 1.0,
                });
                Row { estimates: Some(estimates), ..Row::numeric(outcome, truth) }
            })
            .collect();
        rows.push(Row::numeric(Outcome::Unparsed, 5.0));
        rows.push(Row::numeric(Outcome::Failed, 5.0));
        let rows: Vec<&Row> = rows.iter().collect();
        let Counts { n, n_valid, failed } = Counts::of(&rows);
        let settings =
            json!({ "estimates": { "accuracy": "mode", "mae": "median", "rmse": "trimmed_mean" } });
        let report = Report {
            task: "arithmetic".to_owned(),
            split: "interpolate".to_owned(),
            model: "tiny".to_owned(),
            mode: "regress".to_owned(),
            n,
            n_valid,
            failed,
            settings: settings.as_object().unwrap().clone(),
            metrics: Metrics::of(&rows, 0),
            baselines: constant_baselines(&rows),
            estimates: compare_estimates(&rows, 0),
            mass_closed: Some(0.98765),
            seconds: 1.25,
            ..Report::default()
        };
        let mut out = Vec::new();
        write(&report, &mut out).unwrap();
        insta::assert_snapshot!("table", String::from_utf8(out).unwrap());
    }
}

//! The page that compares several runs.

use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::document::{Block, Cell, Document, Section, Table, numbers, row, words};
use super::tables::estimates_of;
use crate::format::{count, optional_number};
use crate::store::report::Report;
use crate::store::saved::Run;

/// Metric columns. A column is shown if any run has the metric.
const HEADLINES: [&str; 13] = [
    "accuracy",
    "strict",
    "flexible",
    "digit_match",
    "mae",
    "rmse",
    "r2",
    "log_mae",
    "pearson",
    "crps",
    "crps_excess",
    "f1",
    "bleu",
];

/// Returns a page with a row for each run below `folder` and links to the reports.
pub(super) fn document(folder: &Path, runs: &[Run]) -> Document {
    let mut shown = HEADLINES.to_vec();
    shown.retain(|name| runs.iter().any(|run| run.report.metrics.get(name).value.is_some()));
    let columns =
        [words(&["run", "task", "model", "mode"]), numbers(&["items", "with a number"]), numbers(&shown)];
    let some_lack_numbers = runs.iter().any(|run| run.report.n_valid != run.report.n);
    let rows = runs.iter().map(|run| {
        let report = &run.report;
        let mut row = row![
            link(folder, run),
            format!("{} {}", report.task, report.split),
            &report.model,
            &report.mode,
            count(report.n),
            if some_lack_numbers { count(report.n_valid) } else { String::new() },
        ];
        row.extend(shown.iter().map(|name| Cell::from(figure(report, name))));
        row
    });
    let table = Table::new(columns, rows).without_empty_columns();
    let mut blocks = vec![Block::Table(table)];
    if runs.iter().any(|run| run.report.mode == "regress") {
        blocks.extend(estimates_of(shown.iter().copied()).map(Block::Paragraph));
    }
    Document {
        title: "Runs".to_owned(),
        subtitle: if runs.len() == 1 { "1 run".to_owned() } else { format!("{} runs", runs.len()) },
        sections: vec![Section::new("Figures", blocks)],
    }
}

/// Formats a metric, with its number of items if that is not the run's number of items.
fn figure(report: &Report, name: &str) -> String {
    let metric = report.metrics.get(name);
    let is_over_all = metric.value.is_none() || metric.n == report.n;
    let over = if is_over_all { String::new() } else { format!(" (over {})", count(metric.n)) };
    format!("{}{over}", optional_number(metric.value))
}

/// Returns the path from `folder` to the run's directory, with a link to the run's report.
pub fn link(folder: &Path, run: &Run) -> Cell {
    let names = names(folder, run);
    let path: Vec<String> =
        names.iter().map(|name| utf8_percent_encode(name, &RESERVED).to_string()).collect();
    Cell::link(names.join("/"), format!("./{}/report", path.join("/")))
}

/// Returns the path components from `folder` to the run's directory.
fn names(folder: &Path, run: &Run) -> Vec<String> {
    let path = run.folder.strip_prefix(folder).unwrap_or(&run.folder);
    path.iter().map(|name| name.to_string_lossy().into_owned()).collect()
}

/// The characters of a file name that links percent-encode: all except the unreserved characters of RFC 3986.
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{html, markdown};
    use crate::store::saved::tests::run;

    #[test]
    fn every_run_has_a_row_with_a_link_to_its_report() {
        let mut runs = [run(&[(1.0, Some(1.0))]), run(&[(1.0, None)])];
        runs[0].folder = "out/run".into();
        runs[1].folder = "out/text/b #2".into();
        assert_eq!(document(Path::new("out"), &runs[..1]).subtitle, "1 run");
        let document = document(Path::new("out"), &runs);
        assert!(html::render(&document).contains("<a href=\"./text/b%20%232/report.html\">text/b #2</a>"));
        insta::assert_snapshot!(markdown::render(&document), @r##"
        # Runs

        2 runs

        ## Figures

        | run                                     | task                   | model | mode | items | with a number |
        |-----------------------------------------|------------------------|-------|------|-------|---------------|
        | [run](./run/report.md)                  | arithmetic interpolate | tiny  | text |     1 |             1 |
        | [text/b \#2](./text/b%20%232/report.md) | arithmetic interpolate | tiny  | text |     1 |             0 |
        "##);
    }

    #[test]
    fn a_figure_over_a_part_of_the_items_shows_their_number() {
        let mut run = run(&[(1.0, Some(1.0)), (2.0, None)]);
        let metrics = serde_json::json!({
            "accuracy": { "value": 0.5, "n": 2 }, "mae": { "value": 0.0, "n": 1 }, "r2": { "value": null, "n": 1 },
        });
        run.report.metrics = serde_json::from_value(metrics).unwrap();
        insta::assert_snapshot!(markdown::render(&document(Path::new(""), &[run])), @r##"
        # Runs

        1 run

        ## Figures

        | run                    | task                   | model | mode | items | with a number | accuracy |        mae |
        |------------------------|------------------------|-------|------|-------|---------------|----------|------------|
        | [run](./run/report.md) | arithmetic interpolate | tiny  | text |     2 |             1 |   0.5000 | 0 (over 1) |
        "##);
    }
}

//! The page that shows several runs side by side.

use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::document::{Block, Cell, Document, Section, Table, numbers, row, words};
use crate::format::{count, optional_number};
use crate::store::saved::Run;

/// Columns, as far as any run has the metric.
const HEADLINES: [&str; 11] =
    ["accuracy", "strict", "flexible", "mae", "rmse", "r2", "log_mae", "pearson", "crps", "f1", "bleu"];

/// A row for each run that leads to its report.
pub(super) fn document(runs: &[Run]) -> Document {
    let value = |run: &Run, name: &str| run.report.metrics.get(name).value;
    let mut shown = HEADLINES.to_vec();
    shown.retain(|name| runs.iter().any(|run| value(run, name).is_some()));
    let columns =
        [words(&["run", "task", "model", "mode"]), numbers(&["items", "with a number"]), numbers(&shown)];
    let rows = runs.iter().map(|run| {
        let report = &run.report;
        let name = name(&run.folder);
        let mut row = row![
            Cell::link(&*name, format!("./{}/report", utf8_percent_encode(&name, &RESERVED))),
            format!("{} {}", report.task, report.split),
            &report.model,
            &report.mode,
            count(report.n),
            count(report.n_valid),
        ];
        row.extend(shown.iter().map(|name| Cell::from(optional_number(value(run, name)))));
        row
    });
    let table = Table::new(columns, rows);
    Document {
        title: "Runs".to_owned(),
        subtitle: format!("{} runs", runs.len()),
        sections: vec![Section::new("Figures", [Block::Table(table)])],
    }
}

fn name(folder: &Path) -> String {
    folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
}

/// What a file name must not hold as part of a link: all but the unreserved characters of RFC 3986.
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{html, markdown};
    use crate::store::saved::tests::run;

    #[test]
    fn every_run_has_a_row_that_leads_to_its_report() {
        let mut runs = [run(&[(1.0, Some(1.0))]), run(&[(1.0, None)])];
        runs[1].folder = "out/b #2".into();
        let document = document(&runs);
        assert!(html::render(&document).contains("<a href=\"./b%20%232/report.html\">b #2</a>"));
        insta::assert_snapshot!(markdown::render(&document), @r##"
        # Runs

        2 runs

        ## Figures

        | run                           | task                   | model | mode | items | with a number |
        |-------------------------------|------------------------|-------|------|-------|---------------|
        | [run](./run/report.md)        | arithmetic interpolate | tiny  | text |     1 |             1 |
        | [b \#2](./b%20%232/report.md) | arithmetic interpolate | tiny  | text |     1 |             0 |
        "##);
    }
}

//! Compares a run with the results that the NTL paper published for the same task, which are in
//! `published.json`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::document::{Block, Cell, Section, Table, numbers, words};
use crate::format::optional_number;
use crate::metrics::registry::find;
use crate::store::report::Report;

const PUBLISHED: &str = include_str!("published.json");

/// Published results on one split.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Published {
    task: String,
    split: String,
    /// Names of the data files of this split.
    files: Vec<String>,
    /// Number of modules that the figures cover, if the task has modules.
    #[serde(default)]
    modules: usize,
    /// Source of the figures, and what they measure.
    source: String,
    /// Metrics of the cells in each row, after the first cell, which names the model.
    metrics: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Published {
    fn is_of(&self, report: &Report) -> bool {
        let all_modules = report.modules.is_empty() || report.modules.len() == self.modules;
        self.task == report.task && self.split == report.split && all_modules && self.has_data(report)
    }

    /// Returns `false` if the run names a data file of another split. Generated items and directories are
    /// accepted.
    fn has_data(&self, report: &Report) -> bool {
        let path = report.settings.get("data").and_then(Value::as_str).map(Path::new);
        let file = path.filter(|path| path.extension().is_some()).and_then(Path::file_name);
        file.is_none_or(|file| self.files.iter().any(|known| file == known.as_str()))
    }
}

#[expect(clippy::expect_used, reason = "a file of the program, which tests read")]
fn published() -> Vec<Published> {
    serde_json::from_str(PUBLISHED).expect("published.json has the fields of `Published`")
}

/// Returns `None` if there are no published results for the task, split and data of the run.
pub(super) fn section(report: &Report) -> Option<Section> {
    let same = published().into_iter().find(|one| one.is_of(report))?;
    let note = format!(
        "Published: {}. These models were trained on other data and evaluated on other samples of the task. Use them as a \
         reference, not as a ranking.",
        same.source
    );
    Some(Section::new(
        "Comparison with the paper",
        [Block::Table(table(report, &same)), Block::Paragraph(note)],
    ))
}

fn table(report: &Report, published: &Published) -> Table {
    let known: Vec<&str> = published.metrics.iter().filter_map(|name| Some(find(name)?.name)).collect();
    let mut ours = vec![Cell::strong(format!("this run: {}, {}", report.model, report.mode))];
    for name in &published.metrics {
        ours.push(Cell::strong(optional_number(report.metrics.get(name).value)));
    }
    let others = published.rows.iter().map(|row| row.iter().map(|text| text.as_str().into()).collect());
    Table::new([words(&[""]), numbers(&known)], std::iter::once(ours).chain(others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::markdown;
    use crate::store::report::Module;

    #[test]
    fn every_published_row_is_complete() {
        let all = published();
        assert_eq!(all.len(), 6);
        for one in all {
            assert!(one.metrics.iter().all(|name| find(name).is_some()), "{}", one.source);
            for row in one.rows {
                assert_eq!(row.len(), 1 + one.metrics.len(), "{row:?}");
                for figure in &row[1..] {
                    let value = figure.split(" ± ").next().unwrap();
                    assert!(value.parse::<f64>().is_ok(), "{row:?}");
                }
            }
        }
    }

    #[test]
    fn a_run_is_listed_above_the_published_rows_of_its_split() {
        let report = serde_json::json!({
            "task": "rjokes", "split": "test", "model": "tiny", "mode": "regress",
            "metrics": { "rmse": { "value": 1.6512, "n": 5 } }
        });
        let mut report: Report = serde_json::from_value(report).unwrap();
        let found = section(&report).unwrap();
        let Block::Table(shown) = &found.blocks[0] else { panic!("no table first") };
        insta::assert_snapshot!(markdown::table(shown), @r##"
        |                                |        rmse |     pearson |
        |--------------------------------|-------------|-------------|
        | **this run: tiny, regress**    |   **1.651** |       **–** |
        | T5-small, CE                   | 2.01 ± 0.01 | 0.41 ± 0.00 |
        | T5-small, NTL-WAS              | 1.81 ± 0.01 | 0.44 ± 0.00 |
        | T5-small, regression head, MSE | 1.82 ± 0.01 | 0.45 ± 0.00 |
        | BERT, regression head, MSE     |        1.62 |        0.47 |
        | RoBERTa, regression head, MSE  |        1.61 |        0.47 |
        | XLNet, regression head, MSE    |        1.74 |        0.46 |
        "##);
        for (data, same) in
            [("generated", true), ("d/test.tsv.gz", true), ("d/rjokes", true), ("mine.tsv", false)]
        {
            report.settings.insert("data".to_owned(), data.into());
            assert_eq!(section(&report).is_some(), same, "{data}");
        }
        report.settings.clear();
        report.modules.insert("one of many".to_owned(), Module::default());
        assert!(section(&report).is_none());
        report.modules.clear();
        report.split = "dev".to_owned();
        assert!(section(&report).is_none());
    }
}

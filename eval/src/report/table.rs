//! A report for people: tables on a terminal.

use std::io::{self, Write};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use crate::metrics::{Metric, Name};
use crate::store::report::Report;

impl Report {
    /// The tables for people: metrics, and modules and quirks where there are any.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { task, split, model, mode, .. } = self;
        writeln!(out, "{task} {split}: {model}, {} mode", mode.as_str())?;
        let mut rows = Vec::new();
        for (name, metric) in self.metrics.iter() {
            let over = format!("{}/{}", metric.n, self.n);
            rows.push([
                name.as_str().to_owned(),
                number(metric.value),
                interval(&metric),
                over,
                self.constant(name),
            ]);
        }
        write_rows(out, ["metric", "value", "95% interval", "n", "best constant"], rows)?;
        self.write_modules(out)?;
        self.write_quirks(out)?;
        let unparsed = self.n - self.n_valid - self.failed;
        let counts = format!("{} read, {unparsed} without a number, {} failed", self.n_valid, self.failed);
        let mass = self.mass_closed.map_or(String::new(), |mass| format!("; closed mass {mass:.4}"));
        writeln!(out, "{} items: {counts}; {:.1} s{mass}", self.n, self.seconds)
    }

    fn write_modules(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.modules.len() < 2 {
            return Ok(());
        }
        let rows = self.modules.iter().map(|(name, module)| {
            let figure = |name| number(module.metrics.get(name).value);
            let figures = [Name::Accuracy, Name::Mae, Name::LogMae, Name::Mape].map(figure);
            let [accuracy, mae, log_mae, mape] = figures;
            [name.clone(), accuracy, mae, log_mae, mape, module.n.to_string()]
        });
        write_rows(out, ["module", "accuracy", "mae", "log_mae", "mape", "n"], rows.collect())
    }

    fn write_quirks(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.quirks.is_empty() {
            return Ok(());
        }
        let rows = self.quirks.iter().map(|quirk| {
            [quirk.name.to_owned(), number(quirk.paper), number(quirk.sane), quirk.note.clone()]
        });
        write_rows(out, ["quirk", "paper's code", "sane", "what the paper's code does"], rows.collect())
    }

    /// What a constant answer reaches, where that is known.
    fn constant(&self, name: Name) -> String {
        match (name, &self.baselines) {
            (Name::Mae, Some(baselines)) => number(baselines.constant_median.mae.value),
            (Name::Rmse, Some(baselines)) => number(baselines.constant_mean.rmse.value),
            _ => String::new(),
        }
    }
}

fn write_rows<const N: usize>(
    out: &mut dyn Write,
    header: [&str; N],
    rows: Vec<[String; N]>,
) -> io::Result<()> {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate().skip(1) {
        if header[index] != "what the paper's code does" {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    writeln!(out, "{table}")
}

/// Four decimals; large and tiny values with an exponent.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 1e9 || (value.abs() < 1e-4 && value.abs() > 0.0) => {
            format!("{value:.3e}")
        }
        Some(value) => format!("{value:.4}"),
    }
}

fn interval(metric: &Metric) -> String {
    match (metric.low, metric.high) {
        (Some(low), Some(high)) => format!("{} to {}", number(Some(low)), number(Some(high))),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::UNIX_EPOCH;

    use serde_json::Map;

    use super::*;
    use crate::cli::flags::Mode;
    use crate::metrics::{Baselines, Metrics, Outcome, Row};
    use crate::store::report::{Counts, utc};

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

    #[test]
    fn the_table_shows_every_figure_with_its_n() {
        let rows = [
            Row::read(1.0, 1.0),
            Row::read(4.0, 3.0),
            Row::numeric(Outcome::Unparsed, 5.0),
            Row::numeric(Outcome::Failed, 5.0),
        ];
        let Counts { n, n_valid, failed } = Counts::of(&rows);
        let report = Report {
            task: "arithmetic",
            split: "interpolate".to_owned(),
            model: "tiny".to_owned(),
            endpoint: "http://h/v1".to_owned(),
            mode: Mode::Regress,
            n,
            n_valid,
            failed,
            seed: 0,
            settings: Map::new(),
            metrics: Metrics::of(&rows, 0),
            baselines: Some(Baselines::of(&rows)),
            unparsed_rule: "",
            quirks: Vec::new(),
            modules: BTreeMap::new(),
            calibration: None,
            mass_closed: Some(0.98765),
            versions: BTreeMap::new(),
            started: utc(UNIX_EPOCH),
            seconds: 1.25,
        };
        let mut out = Vec::new();
        report.write_table(&mut out).unwrap();
        insta::assert_snapshot!("table", String::from_utf8(out).unwrap());
    }
}

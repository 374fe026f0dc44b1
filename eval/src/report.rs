//! The result of one split: as JSON for programs and as a table for people.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::flags::Mode;
use crate::metrics::{Answer, Baselines, Metric, Metrics, Name, Row};

/// What `report.json` holds. Never NaN or infinite: what is not defined is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the task.
    pub task: &'static str,
    /// Name of the split.
    pub split: &'static str,
    /// The model, as the server calls it.
    pub model: String,
    /// The servers, separated by commas.
    pub endpoint: String,
    /// How it was asked.
    pub mode: Mode,
    /// Items.
    pub n: usize,
    /// Items with a number.
    pub n_valid: usize,
    /// Items without an answer.
    pub failed: usize,
    /// Seed of generated items.
    pub seed: u64,
    /// Everything that may change the result.
    pub settings: Map<String, Value>,
    /// All metrics.
    pub metrics: Metrics,
    /// What constant answers would reach.
    pub baselines: Baselines,
    /// Closed mass behind the numbers, on average; in regress mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mass_closed: Option<f64>,
    /// Programs that took part.
    pub versions: BTreeMap<&'static str, &'static str>,
    /// When the first question was sent, UTC.
    pub started: String,
    /// Until the last answer.
    pub seconds: f64,
}

/// How many items of which fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub n: usize,
    /// With a number.
    pub n_valid: usize,
    /// Without an answer.
    pub failed: usize,
}

impl Counts {
    /// Counts rows.
    pub fn of(rows: &[Row]) -> Self {
        let count = |pick: fn(&Row) -> bool| rows.iter().filter(|row| pick(row)).count();
        Self {
            n: rows.len(),
            n_valid: count(|row| matches!(row.answer, Answer::Read(_))),
            failed: count(|row| row.answer == Answer::Failed),
        }
    }
}

impl Report {
    /// The table for people.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { task, split, model, mode, .. } = self;
        writeln!(out, "{task} {split}: {model}, {} mode", mode_name(*mode))?;
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN).set_header([
            "metric",
            "value",
            "95% interval",
            "n",
            "best constant",
        ]);
        for name in Name::ALL {
            let metric = self.metrics.get(name);
            let over = format!("{}/{}", metric.n, self.n);
            table.add_row([
                name.as_str().to_owned(),
                number(metric.value),
                interval(&metric),
                over,
                self.constant(name),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(out, "{table}")?;
        let unparsed = self.n - self.n_valid - self.failed;
        let counts = format!("{} read, {unparsed} without a number, {} failed", self.n_valid, self.failed);
        let mass = self.mass_closed.map_or(String::new(), |mass| format!("; closed mass {mass:.4}"));
        writeln!(out, "{} items: {counts}; {:.1} s{mass}", self.n, self.seconds)
    }

    /// What a constant answer reaches, where that is known.
    fn constant(&self, name: Name) -> String {
        match name {
            Name::Mae => number(self.baselines.constant_median.mae.value),
            Name::Rmse => number(self.baselines.constant_mean.rmse.value),
            _ => String::new(),
        }
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Text => "text",
        Mode::Regress => "regress",
    }
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
        (Some(low), Some(high)) => format!("{low:.4} to {high:.4}"),
        _ => String::new(),
    }
}

/// ISO 8601 in UTC, to the second, such as `2026-01-31T23:59:59Z`. Times before 1970 read as 1970.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (mut days, in_day) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= days_in_year(year) {
        days -= days_in_year(year);
        year += 1;
    }
    let february = days_in_year(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (in_day / 3_600, in_day / 60 % 60, in_day % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

fn days_in_year(year: u64) -> u64 {
    let leap = (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    if leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), want);
        }
    }

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
            Row { answer: Answer::Unparsed, label: 5.0 },
            Row { answer: Answer::Failed, label: 5.0 },
        ];
        let Counts { n, n_valid, failed } = Counts::of(&rows);
        let report = Report {
            task: "arithmetic",
            split: "interpolate",
            model: "tiny".to_owned(),
            endpoint: "http://h/v1".to_owned(),
            mode: Mode::Regress,
            n,
            n_valid,
            failed,
            seed: 0,
            settings: Map::new(),
            metrics: Metrics::of(&rows),
            baselines: Baselines::of(&rows),
            mass_closed: Some(0.98765),
            versions: BTreeMap::new(),
            started: utc(UNIX_EPOCH),
            seconds: 1.25,
        };
        let mut out = Vec::new();
        report.write_table(&mut out).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r#"
        arithmetic interpolate: tiny, regress mode
        | metric    |  value |     95% interval |   n | best constant |
        |-----------|--------|------------------|-----|---------------|
        | accuracy  | 0.2500 | 0.0456 to 0.6994 | 4/4 |               |
        | mae       | 0.5000 |                  | 2/4 |        1.5000 |
        | mse       | 0.5000 |                  | 2/4 |               |
        | rmse      | 0.7071 |                  | 2/4 |        1.6583 |
        | r2        | 0.5000 |                  | 2/4 |               |
        | median_ae | 0.5000 |                  | 2/4 |               |
        | log_mae   | 0.0485 |                  | 2/4 |               |
        | log_r2    | 0.7927 |                  | 2/4 |               |
        | unparsed  | 0.3333 | 0.0615 to 0.7923 | 3/4 |               |
        4 items: 2 read, 1 without a number, 1 failed; 1.2 s; closed mass 0.9877
        "#);
    }
}

//! Figures of a run: rates, percentiles of latencies, failures by reason; as a table and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use super::rhythm::Run;

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half are faster.
    pub p50: f64,
    /// 19 of 20 are faster.
    pub p95: f64,
    /// 99 of 100 are faster.
    pub p99: f64,
}

/// The figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Who answered.
    pub target: &'static str,
    /// Rhythm, such as `8 at once` or `20/s`.
    pub load: String,
    /// Requests that were answered.
    pub answered: usize,
    /// Requests that were due but not sent.
    pub dropped: usize,
    /// Requests without an answer, by reason.
    pub failed: BTreeMap<String, usize>,
    /// Answers a second.
    pub requests_per_second: f64,
    /// Tokens a second, as the server counts them.
    pub tokens_per_second: f64,
    /// Until the first piece of an answer.
    pub time_to_first: Option<Percentiles>,
    /// Between two pieces.
    pub inter_token: Option<Percentiles>,
    /// Until the end of an answer.
    pub end_to_end: Option<Percentiles>,
}

impl Summary {
    /// Sums up a run.
    pub fn of(run: &Run, target: &'static str, load: String) -> Self {
        let mut failed = BTreeMap::new();
        for reason in run.timings.iter().filter_map(|timing| timing.failure.clone()) {
            *failed.entry(reason).or_default() += 1;
        }
        let answered: Vec<_> = run.timings.iter().filter(|timing| timing.failure.is_none()).collect();
        let tokens: u64 = answered.iter().map(|timing| timing.tokens).sum();
        Self {
            target,
            load,
            answered: answered.len(),
            dropped: run.dropped,
            failed,
            requests_per_second: answered.len() as f64 / run.seconds,
            tokens_per_second: tokens as f64 / run.seconds,
            time_to_first: percentiles(answered.iter().filter_map(|timing| timing.first)),
            inter_token: percentiles(answered.iter().flat_map(|timing| timing.gaps.iter().copied())),
            end_to_end: percentiles(answered.iter().map(|timing| timing.total)),
        }
    }
}

/// Nearest-rank percentiles; `None` of nothing.
fn percentiles(times: impl Iterator<Item = Duration>) -> Option<Percentiles> {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let at = |share: f64| {
        let rank = (share * times.len() as f64).ceil() as usize;
        times.get(rank.max(1) - 1).map(|time| time.as_secs_f64() * 1e3)
    };
    Some(Percentiles { p50: at(0.5)?, p95: at(0.95)?, p99: at(0.99)? })
}

/// The table for people. Latencies are p50 / p95 / p99 in milliseconds.
///
/// # Errors
/// `out` cannot be written to.
pub fn write_table(summaries: &[Summary], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "| target | load | answered | failed | dropped | requests/s | tokens/s | first piece ms | between pieces ms | end to end ms |"
    )?;
    writeln!(out, "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")?;
    for summary in summaries {
        let failed: usize = summary.failed.values().sum();
        writeln!(
            out,
            "| {} | {} | {} | {failed} | {} | {:.1} | {:.0} | {} | {} | {} |",
            summary.target,
            summary.load,
            summary.answered,
            summary.dropped,
            summary.requests_per_second,
            summary.tokens_per_second,
            cell(summary.time_to_first),
            cell(summary.inter_token),
            cell(summary.end_to_end),
        )?;
    }
    for summary in summaries {
        for (reason, count) in &summary.failed {
            writeln!(out, "{} at {}: {count} failed: {reason}", summary.target, summary.load)?;
        }
    }
    Ok(())
}

fn cell(percentiles: Option<Percentiles>) -> String {
    percentiles.map_or("-".to_owned(), |p| format!("{:.1} / {:.1} / {:.1}", p.p50, p.p95, p.p99))
}

#[cfg(test)]
mod tests {
    use super::super::Timing;
    use super::*;

    #[test]
    fn failures_and_drops_are_counted_and_are_no_part_of_latencies() {
        let answer = |ms: u64| Timing {
            first: Some(Duration::from_millis(ms)),
            total: Duration::from_millis(2 * ms),
            tokens: 10,
            ..Timing::default()
        };
        let mut timings: Vec<Timing> = (1..=100).map(answer).collect();
        timings.push(Timing { failure: Some("status 429".to_owned()), ..answer(9999) });
        let summary = Summary::of(&Run { timings, dropped: 3, seconds: 2.0 }, "http", "8 at once".to_owned());
        assert_eq!((summary.answered, summary.dropped, summary.failed["status 429"]), (100, 3, 1));
        let first = summary.time_to_first.unwrap();
        assert_eq!([first.p50, first.p95, first.p99].map(|ms| ms.round() as u64), [50, 95, 99]);
        assert_eq!(summary.tokens_per_second.round() as u64, 500);
        assert_eq!(summary.inter_token, None);
        let mut out = Vec::new();
        write_table(&[summary], &mut out).unwrap();
        let table = String::from_utf8(out).unwrap();
        assert!(table.contains("| 100 | 1 | 3 | 50.0 | 500 | 50.0 / 95.0 / 99.0 | - |"), "{table}");
        assert!(table.ends_with("1 failed: status 429\n"), "{table}");
    }
}

//! Summarises a run as a table or JSON: rates, latency percentiles, failures by reason.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::arrivals::Run;
use crate::stats::Percentiles;
use crate::table::write_table;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub target: &'static str,
    /// Load level, such as `8 concurrent` or `20/s`.
    pub load: String,
    pub answered: usize,
    pub dropped: usize,
    /// Number of failed requests by reason.
    pub failed: BTreeMap<String, usize>,
    pub requests_per_second: f64,
    /// Tokens of answered requests per second, as counted by the server.
    pub tokens_per_second: f64,
    /// CPU time of the target per token, in microseconds.
    pub processor_us_per_token: Option<f64>,
    pub time_to_first: Option<Percentiles>,
    pub inter_token: Option<Percentiles>,
    pub end_to_end: Option<Percentiles>,
}

impl Summary {
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
            processor_us_per_token: run.processor.map(|time| time.as_secs_f64() * 1e6 / tokens.max(1) as f64),
            time_to_first: Percentiles::of(answered.iter().filter_map(|timing| timing.first)),
            inter_token: Percentiles::of(answered.iter().flat_map(|timing| timing.gaps.iter().copied())),
            end_to_end: Percentiles::of(answered.iter().map(|timing| timing.total)),
        }
    }
}

const HEADER: &str = "target | load | answered | failed | dropped | requests/s | tokens/s | CPU µs/token | first chunk ms | \
                      between chunks ms | end to end ms";

pub fn write_summaries(summaries: &[Summary], out: &mut dyn Write) -> io::Result<()> {
    write_table(out, 2, HEADER, summaries.iter().map(row))?;
    for summary in summaries {
        for (reason, count) in &summary.failed {
            writeln!(out, "{} at {}: {count} failed: {reason}", summary.target, summary.load)?;
        }
    }
    Ok(())
}

fn row(summary: &Summary) -> String {
    let Summary { target, load, answered, dropped, requests_per_second, tokens_per_second, .. } = summary;
    let processor = summary.processor_us_per_token.map_or("-".to_owned(), |us| format!("{us:.1}"));
    let failed: usize = summary.failed.values().sum();
    let latencies = [summary.time_to_first, summary.inter_token, summary.end_to_end]
        .map(|latency| latency.map_or("-".to_owned(), |latency| latency.to_string()));
    format!(
        "{target} | {load} | {answered} | {failed} | {dropped} | {requests_per_second:.1} | \
         {tokens_per_second:.0} | {processor} | {}",
        latencies.join(" | ")
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::target::Timing;
    use super::*;

    #[test]
    fn failures_and_drops_are_counted_but_excluded_from_latencies() {
        let answer = |ms: u64| Timing {
            first: Some(Duration::from_millis(ms)),
            total: Duration::from_millis(2 * ms),
            tokens: 10,
            ..Timing::default()
        };
        let mut timings: Vec<Timing> = (1..=100).map(answer).collect();
        timings.push(Timing { failure: Some("status 429".to_owned()), ..answer(9999) });
        let summary = Summary::of(
            &Run { timings, dropped: 3, seconds: 2.0, processor: Some(Duration::from_millis(5)) },
            "http",
            "8 concurrent".to_owned(),
        );
        assert_eq!((summary.answered, summary.dropped, summary.failed["status 429"]), (100, 3, 1));
        let first = summary.time_to_first.unwrap();
        assert_eq!([first.p50, first.p95, first.p99].map(|ms| ms.round() as u64), [50, 95, 99]);
        assert_eq!(summary.tokens_per_second.round() as u64, 500);
        assert_eq!(summary.processor_us_per_token.map(f64::round), Some(5.0));
        assert_eq!(summary.inter_token, None);
        let mut out = Vec::new();
        write_summaries(&[summary], &mut out).unwrap();
        let table = String::from_utf8(out).unwrap();
        assert!(table.contains("| 100 | 1 | 3 | 50.0 | 500 | 5.0 | 50.0 / 95.0 / 99.0 | - |"), "{table}");
        assert!(table.ends_with("1 failed: status 429\n"), "{table}");
    }
}

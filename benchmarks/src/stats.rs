//! Summaries of repeated measurements: medians with their spread, and percentiles of latencies.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Median and range. Without numbers, all three fields are NaN. For an even count, the median is the mean of
/// the two middle numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let len = sorted.len();
        let median = f64::midpoint(at(len.saturating_sub(1) / 2), at(len / 2));
        Self { median, min: at(0), max: at(len.saturating_sub(1)) }
    }

    pub fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }
}

/// Writes `median (min-max)`, with one decimal unless the format specifies a precision.
impl fmt::Display for Spread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = out.precision().unwrap_or(1);
        write!(out, "{:.decimals$} ({:.decimals$}-{:.decimals$})", self.median, self.min, self.max)
    }
}

/// Latency percentiles in milliseconds, by nearest rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Percentiles {
    pub fn of(times: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut times: Vec<Duration> = times.into_iter().collect();
        times.sort_unstable();
        let at = |share: f64| {
            let rank = (share * times.len() as f64).ceil() as usize;
            times.get(rank.max(1) - 1).map(|time| time.as_secs_f64() * 1e3)
        };
        Some(Self { p50: at(0.5)?, p95: at(0.95)?, p99: at(0.99)? })
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.1} / {:.1} / {:.1}", self.p50, self.p95, self.p99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_shows_the_median_and_the_range() {
        assert_eq!(format!("{:.1}", Spread::of([3.0, 1.0, 2.0])), "2.0 (1.0-3.0)");
        assert_eq!(format!("{:.2}", Spread::of([4.0, 1.0]).times(2.0)), "5.00 (2.00-8.00)");
        assert_eq!(format!("{:.0}", Spread::of([])), "NaN (NaN-NaN)");
    }
}

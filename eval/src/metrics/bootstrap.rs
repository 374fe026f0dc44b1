//! Percentile bootstrap: how far figures move when the items are drawn again with replacement.
//!
//! A draw is given as how often each row occurs, so that what was sorted once stays sorted. Seeded: the same rows and
//! seed give the same intervals.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How often the rows are drawn again.
pub const RESAMPLES: usize = 1_000;

/// The ends of a 95% interval.
pub type Interval = (f64, f64);

/// One interval for each of the figures, which get how often each of the `rows` occurs. `None` where a figure is
/// missing in more than a tenth of the draws, or there are fewer than two rows.
pub fn intervals(
    rows: usize,
    seed: u64,
    figures: impl Fn(&[u32]) -> Vec<Option<f64>>,
) -> Vec<Option<Interval>> {
    if rows < 2 {
        return Vec::new();
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drawn: Vec<Vec<f64>> = Vec::new();
    let mut times = vec![0_u32; rows];
    for _ in 0..RESAMPLES {
        times.fill(0);
        for _ in 0..rows {
            times[rng.random_range(0..rows)] += 1;
        }
        let values = figures(&times);
        drawn.resize(values.len(), Vec::new());
        for (column, value) in drawn.iter_mut().zip(values) {
            column.extend(value);
        }
    }
    drawn.into_iter().map(middle_95).collect()
}

fn middle_95(mut values: Vec<f64>) -> Option<Interval> {
    if values.len() < RESAMPLES - RESAMPLES / 10 {
        return None;
    }
    values.sort_by(f64::total_cmp);
    Some((quantile(&values, 0.025)?, quantile(&values, 0.975)?))
}

/// Linear interpolation between the two nearest of the sorted values; `None` of nothing.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (*sorted.get(at.floor() as usize)?, *sorted.get(at.ceil() as usize)?);
    Some(low + (high - low) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(values: &[f64], times: &[u32]) -> Option<f64> {
        let sum: f64 = values.iter().zip(times).map(|(value, &times)| value * f64::from(times)).sum();
        Some(sum / values.len() as f64)
    }

    #[test]
    fn the_interval_of_a_mean_is_about_two_standard_errors_wide() {
        let values: Vec<f64> = (0..400).map(|index| f64::from(index % 2)).collect();
        let found = intervals(values.len(), 7, |times| vec![mean(&values, times)]);
        let (low, high) = found[0].unwrap();
        // Standard error 0.5 / 20.
        assert!((low - 0.451).abs() < 0.006 && (high - 0.549).abs() < 0.006, "{low} {high}");
    }

    #[test]
    fn the_seed_decides() {
        let values = [1.0, 5.0, 2.0, 8.0, 3.0];
        let run = |seed| intervals(5, seed, |times| vec![mean(&values, times)]);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn what_is_often_missing_has_no_interval() {
        let found = intervals(3, 0, |times| vec![(times[0] > 0).then_some(1.0), Some(2.0)]);
        assert_eq!(found, [None, Some((2.0, 2.0))]);
        assert!(intervals(1, 0, |_| vec![Some(1.0)]).is_empty());
    }
}

//! The studentised bootstrap of one statistic (Efron 1979, Hall 1988): each resample counts by its distance
//! in its own standard errors, so that a sample without large values has a wide interval.
//!
//! In: a statistic and the standard deviation of its influences, of the items and of resamples. Out:
//! plausible values of the true statistic, whose quantiles are the ends of an interval.

use super::Interval;
use super::weighted::mean_in_order;

/// A resample has no deviation if its deviation is at most this share of that of the items.
const ROUNDING: f64 = 1e-9;

/// The possible values of a statistic, and with them the scale on which its distances are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Any number; distances are differences.
    Any,
    /// At least 0, like an error; distances are ratios.
    Positive,
    /// From 0 to 1; distances are differences.
    Share,
    /// At most 1, like the share of explained variance; distances are ratios of the rest.
    AtMostOne,
    /// From -1 to 1; distances are differences of Fisher's transformation.
    Correlation,
}

/// A statistic of items or of a resample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Studied {
    pub value: f64,
    /// Standard deviation of the items' influences on the statistic: its standard error times the square root
    /// of the number of items.
    pub deviation: f64,
}

impl Scale {
    /// Returns the value on the scale of the distances, and the derivative.
    fn transformed(self, value: f64) -> (f64, f64) {
        match self {
            Self::Any | Self::Share => (value, 1.0),
            Self::Positive => (value.ln(), 1.0 / value),
            Self::AtMostOne => (-(1.0 - value).ln(), 1.0 / (1.0 - value)),
            Self::Correlation => (value.atanh(), 1.0 / (1.0 - value * value)),
        }
    }

    fn inverse(self, transformed: f64) -> f64 {
        match self {
            Self::Any | Self::Share => transformed,
            Self::Positive => transformed.exp(),
            Self::AtMostOne => 1.0 - (-transformed).exp(),
            Self::Correlation => transformed.tanh(),
        }
    }

    /// Returns a plausible value of the true statistic, given the distance between a resample and the
    /// items: it counts more if the resample has a smaller standard error.
    pub fn plausible(self, items: Studied, resample: Studied) -> f64 {
        let (value, slope) = self.transformed(items.value);
        let (resampled, resampled_slope) = self.transformed(resample.value);
        let ratio = resample.deviation * resampled_slope / (items.deviation * slope);
        let plausible = self.inverse(value - (resampled - value) / ratio);
        // Equal items and values at the end of the scale have no standard error: then all resamples have the
        // same one.
        let is_measured = resample.deviation > ROUNDING * items.deviation && plausible.is_finite();
        if is_measured { plausible } else { 2.0 * items.value - resample.value }
    }

    /// Cuts an interval to the possible values.
    pub fn limit(self, interval: Interval) -> Interval {
        let (least, most) = match self {
            Self::Any => return interval,
            Self::Positive => (0.0, f64::INFINITY),
            Self::Share => (0.0, 1.0),
            Self::AtMostOne => (f64::NEG_INFINITY, 1.0),
            Self::Correlation => (-1.0, 1.0),
        };
        Interval { low: interval.low.clamp(least, most), high: interval.high.clamp(least, most) }
    }
}

/// Returns the standard deviation of the items' influences. `None` without items, or if a sum overflows.
pub fn deviation(influence: &[f64], weights: &[f64]) -> Option<f64> {
    let centre = mean_in_order(influence, weights)?;
    let squares: Vec<f64> = influence.iter().map(|value| (value - centre).powi(2)).collect();
    mean_in_order(&squares, weights).map(f64::sqrt)
}

/// Returns the share of their sum that the largest twentieth of the values has, at least one value. `None` if
/// a value is negative, or if all are 0.
pub fn share_of_largest(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let total: f64 = sorted.iter().sum();
    let is_positive = sorted.last().is_some_and(|least| *least >= 0.0) && total > 0.0 && total.is_finite();
    let largest = sorted.iter().take(largest_items(values.len()));
    is_positive.then(|| largest.sum::<f64>() / total)
}

/// Returns a twentieth of the number of items, at least 1.
pub fn largest_items(n: usize) -> usize {
    ((n as f64 / 20.0).round() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::stats::bootstrap::{Bootstrap, percentile_interval};

    fn normal(generator: &mut ChaCha8Rng) -> f64 {
        let uniform = 1.0 - generator.random::<f64>();
        (-2.0 * uniform.ln()).sqrt() * (std::f64::consts::TAU * generator.random::<f64>()).cos()
    }

    /// Returns the shares of simulated samples whose intervals contain the true mean: studentised, and of
    /// percentiles.
    fn coverage(n: usize, mean: f64, draw: impl Fn(&mut ChaCha8Rng) -> f64) -> [f64; 2] {
        const SAMPLES: usize = 400;
        let mut covered = [0; 2];
        for sample in 0..SAMPLES {
            let mut generator = ChaCha8Rng::seed_from_u64((1_000 * n + sample) as u64);
            let values: Vec<f64> = (0..n).map(|_| draw(&mut generator)).collect();
            let study = |weights: &[f64]| Studied {
                value: mean_in_order(&values, weights).unwrap(),
                deviation: deviation(&values, weights).unwrap(),
            };
            let items = study(&vec![1.0; n]);
            let resamples = Bootstrap { resamples: 199, seed: sample as u64 }.resample(n, study);
            let plausible = resamples.iter().map(|resample| Scale::Positive.plausible(items, *resample));
            let resampled = resamples.iter().map(|resample| resample.value);
            for (covered, mut values) in
                covered.iter_mut().zip([plausible.collect(), resampled.collect::<Vec<_>>()])
            {
                let interval = percentile_interval(&mut values, 0.025).unwrap();
                *covered += usize::from(interval.low <= mean && mean <= interval.high);
            }
        }
        covered.map(|covered| covered as f64 / SAMPLES as f64)
    }

    /// The standard error of a share is about 0.012. Percentiles cover 81%, 80% and 66%.
    #[test]
    fn intervals_of_skewed_errors_cover_more_often_than_percentiles() {
        let square_of_normal = coverage(10, 1.0, |generator| normal(generator).powi(2));
        assert!(square_of_normal[0] > 0.88 && square_of_normal[1] < 0.86, "{square_of_normal:?}");
        let lognormal = coverage(10, 0.5_f64.exp(), |generator| normal(generator).exp());
        assert!(lognormal[0] > 0.87 && lognormal[1] < 0.85, "{lognormal:?}");
        let square_of_lognormal = coverage(20, 2_f64.exp(), |generator| (2.0 * normal(generator)).exp());
        assert!(square_of_lognormal[0] > 0.79 && square_of_lognormal[1] < 0.72, "{square_of_lognormal:?}");
    }

    #[test]
    fn a_resample_of_equal_items_counts_with_the_deviation_of_the_items() {
        let items = Studied { value: 3.0, deviation: 2.0 };
        for scale in [Scale::Any, Scale::Positive] {
            let equal = scale.plausible(items, Studied { value: 4.0, deviation: 0.0 });
            assert!((equal - 2.0).abs() < 1e-12, "{scale:?}: {equal}");
            let same = scale.plausible(items, items);
            assert!((same - 3.0).abs() < 1e-12, "{scale:?}: {same}");
        }
        assert!(
            (Scale::Positive.plausible(items, Studied { value: 0.0, deviation: 0.0 }) - 6.0).abs() < 1e-12
        );
        let correlation = Studied { value: 0.5, deviation: 1.0 };
        let perfect = Scale::Correlation.plausible(correlation, Studied { value: 1.0, deviation: 0.1 });
        assert!(perfect.is_finite(), "{perfect}");
    }

    #[test]
    fn the_largest_twentieth_is_at_least_one_item() {
        let share = |values: &[f64]| share_of_largest(values).unwrap();
        assert!((share(&[1.0, 3.0]) - 0.75).abs() < 1e-12);
        let many: Vec<f64> = (0..100).map(|index| if index < 5 { 19.0 } else { 1.0 }).collect();
        assert!((share(&many) - 0.5).abs() < 1e-12);
        assert_eq!(
            (share_of_largest(&[0.0]), share_of_largest(&[1.0, -1.0]), share_of_largest(&[])),
            (None, None, None)
        );
    }
}

//! The bootstrap: how a statistic varies when the items are drawn again with replacement.
//!
//! A resample is given as weights: how often each item was drawn. So what was sorted once stays sorted, and a paired
//! bootstrap gives both sides the same weights. The weights depend on the seed and the number of items alone.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::Interval;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap {
    pub resamples: u32,
    pub seed: u64,
}

impl Bootstrap {
    /// `statistic` of every resample of `n` items, one after the other from one generator. Reports use this one.
    pub fn resample<T>(self, n: usize, statistic: impl Fn(&[f64]) -> T) -> Vec<T> {
        if n == 0 {
            return Vec::new();
        }
        let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
        let mut weights = vec![0.0; n];
        let one = |_| {
            draw(&mut weights, &mut generator);
            statistic(&weights)
        };
        (0..self.resamples).map(one).collect()
    }

    /// The same in parallel: each resample has its own stream of the generator. Comparisons use this one.
    pub fn resample_in_parallel<T: Send>(self, n: usize, statistic: impl Fn(&[f64]) -> T + Sync) -> Vec<T> {
        if n == 0 {
            return Vec::new();
        }
        let one = |weights: &mut Vec<f64>, index: u32| {
            let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
            generator.set_stream(u64::from(index));
            draw(weights, &mut generator);
            statistic(weights)
        };
        (0..self.resamples).into_par_iter().map_init(|| vec![0.0; n], one).collect()
    }
}

fn draw(weights: &mut [f64], generator: &mut ChaCha8Rng) {
    weights.fill(0.0);
    for _ in 0..weights.len() {
        weights[generator.random_range(0..weights.len())] += 1.0;
    }
}

/// The percentile interval (Efron and Tibshirani 1993, chapter 13) that leaves out the share `tail` of the values on
/// either side; `None` of nothing.
pub fn percentile_interval(values: &mut [f64], tail: f64) -> Option<Interval> {
    values.sort_by(f64::total_cmp);
    Some(Interval { low: quantile(values, tail)?, high: quantile(values, 1.0 - tail)? })
}

/// numpy's quantile: linear between the two nearest of the sorted values; `None` of nothing.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (lower, upper) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(lower + (upper - lower) * at.fract())
}

/// What resampled differences say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DifferenceTest {
    /// 95% percentile interval.
    pub interval: Interval,
    /// Two-sided p-value of no difference: twice the share of resamples on the rarer side of zero, zero itself
    /// on both, with one added above and below (Davison and Hinkley 1997, section 4.2), so never 0.
    pub p: f64,
}

/// Interval and p-value of resampled differences; `None` of nothing.
pub fn test_difference(mut differences: Vec<f64>) -> Option<DifferenceTest> {
    let interval = percentile_interval(&mut differences, (1.0 - 0.95) / 2.0)?;
    let n = differences.len();
    let below = differences.partition_point(|&difference| difference <= 0.0);
    let above = n - differences.partition_point(|&difference| difference < 0.0);
    let rarer = (below.min(above) + 1) as f64 / (n + 1) as f64;
    Some(DifferenceTest { interval, p: (2.0 * rarer).min(1.0) })
}

/// Interval and p-value of a difference, from resamples some of which may lack it. The interval is widened to the difference.
/// `None` where most resamples lack it: such a figure has no distribution to speak of.
pub fn test_resampled(
    difference: f64,
    resampled: impl ExactSizeIterator<Item = Option<f64>>,
) -> Option<DifferenceTest> {
    let drawn = resampled.len();
    let found: Vec<f64> = resampled.flatten().collect();
    let tested = Some(found).filter(|found| 2 * found.len() > drawn).and_then(test_difference)?;
    Some(DifferenceTest { interval: tested.interval.including(difference), ..tested })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::weighted::mean_in_lanes;

    const MANY: Bootstrap = Bootstrap { resamples: 20_000, seed: 7 };

    #[test]
    fn weights_count_draws_and_depend_on_the_seed_alone() {
        let draw = |seed| Bootstrap { resamples: 3, seed }.resample_in_parallel(50, <[f64]>::to_vec);
        let weights = draw(1);
        for resample in &weights {
            assert!((resample.iter().sum::<f64>() - 50.0).abs() < 1e-12);
        }
        assert_eq!(weights, draw(1));
        assert_ne!(weights, draw(2));
        assert_ne!(weights[0], weights[1]);
        assert!(MANY.resample_in_parallel(0, <[f64]>::len).is_empty());
    }

    #[test]
    fn quantiles_are_numpys() {
        // np.quantile([1, 2, 4, 8, 16], [0, 0.1, 0.5, 0.95, 1])
        let sorted = [1.0, 2.0, 4.0, 8.0, 16.0];
        for (q, want) in [(0.0, 1.0), (0.1, 1.4), (0.5, 4.0), (0.95, 14.4), (1.0, 16.0)] {
            assert!((quantile(&sorted, q).unwrap() - want).abs() < 1e-12, "{q}");
        }
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn the_interval_of_a_mean_is_scipys() {
        // x = np.array([((7 * i) % 31) / 10 - 1 for i in range(200)])
        // bootstrap((x,), np.mean, n_resamples=1_000_000, method="percentile", random_state=0)
        let x: Vec<f64> = (0..200).map(|i| f64::from((7 * i) % 31) / 10.0 - 1.0).collect();
        let means = MANY.resample_in_parallel(x.len(), |weights| mean_in_lanes(&x, weights));
        let got = test_difference(means.into_iter().flatten().collect()).unwrap();
        // A percentile of 20,000 draws is itself uncertain by about 0.001 here.
        assert!((got.interval.low - 0.3725).abs() < 0.004, "{got:?}");
        assert!((got.interval.high - 0.621).abs() < 0.004, "{got:?}");
        assert!(got.p < 0.001 && got.interval.excludes_zero());
    }

    #[test]
    fn no_difference_is_never_significant_and_a_constant_one_is_as_sure_as_resamples_allow() {
        let none = test_difference(vec![0.0; 999]).unwrap();
        assert!((none.p - 1.0).abs() < 1e-12 && !none.interval.excludes_zero());
        let sure = test_difference(vec![2.0; 999]).unwrap();
        assert!((sure.p - 0.002).abs() < 1e-12 && sure.interval.excludes_zero());
        assert_eq!(test_difference(Vec::new()), None);
    }
}

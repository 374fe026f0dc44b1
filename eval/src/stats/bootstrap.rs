//! The bootstrap: how a figure would vary if the items were drawn again.
//!
//! A resample is given as weights: how often each item was drawn. Whatever a figure is, it is computed from the
//! values of all items once and from the weights of each resample, on both runs with the same weights; that makes
//! the bootstrap a paired one. Resamples are numbered and each has its own stream of the seeded generator, so results
//! depend neither on the number of threads nor on what else is computed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::Interval;

/// Share of the resampled figures that lies within the interval.
const CONFIDENCE: f64 = 0.95;

/// How to resample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap {
    /// How many resamples.
    pub resamples: u32,
    /// Of the generator.
    pub seed: u64,
}

impl Bootstrap {
    /// `figure` of every resample of `n` items: `n` draws with replacement, handed over as `n` weights that sum to `n`.
    pub fn resample<T: Send>(self, n: usize, figure: impl Fn(&[f64]) -> T + Sync) -> Vec<T> {
        let Ok(bound @ 1..) = u32::try_from(n) else { return Vec::new() };
        let one = |weights: &mut Vec<f64>, index: u32| {
            let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
            generator.set_stream(u64::from(index));
            weights.fill(0.0);
            for _ in 0..n {
                weights[generator.random_range(0..bound) as usize] += 1.0;
            }
            figure(weights)
        };
        (0..self.resamples).into_par_iter().map_init(|| vec![0.0; n], one).collect()
    }
}

/// What the resampled differences say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// 95% percentile interval (Efron and Tibshirani 1993, chapter 13), with numpy's linear interpolation.
    pub interval: Interval,
    /// Two-sided p-value of no difference: twice the share of resamples on the rarer side of zero, zero itself
    /// on both, with one added above and below (Davison and Hinkley 1997, section 4.2), so never 0.
    pub p: f64,
}

/// Interval and p-value of resampled differences; `None` of nothing.
pub fn spread(mut differences: Vec<f64>) -> Option<Spread> {
    differences.sort_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let interval = Interval { low: quantile(&differences, tail)?, high: quantile(&differences, 1.0 - tail)? };
    let n = differences.len();
    let below = differences.partition_point(|&difference| difference <= 0.0);
    let above = n - differences.partition_point(|&difference| difference < 0.0);
    let rarer = (below.min(above) + 1) as f64 / (n + 1) as f64;
    Some(Spread { interval, p: (2.0 * rarer).min(1.0) })
}

/// Of sorted values, interpolated linearly between neighbours.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (lower, upper) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(lower + (upper - lower) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::weighted;

    const MANY: Bootstrap = Bootstrap { resamples: 20_000, seed: 7 };

    #[test]
    fn weights_count_draws_and_depend_on_the_seed_alone() {
        let draw = |seed| Bootstrap { resamples: 3, seed }.resample(50, <[f64]>::to_vec);
        let weights = draw(1);
        for resample in &weights {
            assert!((resample.iter().sum::<f64>() - 50.0).abs() < 1e-12);
        }
        assert_eq!(weights, draw(1));
        assert_ne!(weights, draw(2));
        assert_ne!(weights[0], weights[1]);
        assert!(MANY.resample(0, <[f64]>::len).is_empty());
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
        let means = MANY.resample(x.len(), |weights| weighted::mean(&x, weights));
        let got = spread(means.into_iter().flatten().collect()).unwrap();
        // A percentile of 20,000 draws is itself uncertain by about 0.001 here.
        assert!((got.interval.low - 0.3725).abs() < 0.004, "{got:?}");
        assert!((got.interval.high - 0.621).abs() < 0.004, "{got:?}");
        assert!(got.p < 0.001 && got.interval.excludes_zero());
    }

    #[test]
    fn no_difference_is_never_significant_and_a_constant_one_is_as_sure_as_resamples_allow() {
        let none = spread(vec![0.0; 999]).unwrap();
        assert!((none.p - 1.0).abs() < 1e-12 && !none.interval.excludes_zero());
        let sure = spread(vec![2.0; 999]).unwrap();
        assert!((sure.p - 0.002).abs() < 1e-12 && sure.interval.excludes_zero());
        assert_eq!(spread(Vec::new()), None);
    }
}

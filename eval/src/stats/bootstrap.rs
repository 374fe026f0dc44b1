//! The bootstrap: estimates how a statistic varies when the items are drawn again with replacement.
//!
//! A resample is a list of weights: how often each item was drawn. Data that was sorted once therefore stays
//! sorted, and a paired bootstrap gives both sides the same weights. The weights only depend on the seed and
//! the number of items.

use ntl_paper::numpy::quantile;
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
    /// Returns `statistic` of every resample of `n` items, drawn one after the other from one generator.
    /// Reports use this method.
    pub fn resample<T>(self, n: usize, statistic: impl Fn(&[f64]) -> T) -> Vec<T> {
        if n == 0 {
            return Vec::new();
        }
        let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
        let mut weights = vec![0.0; n];
        let mut statistics = Vec::with_capacity(self.resamples as usize);
        for _ in 0..self.resamples {
            draw(&mut weights, &mut generator);
            statistics.push(statistic(&weights));
        }
        statistics
    }

    /// Like [`Self::resample`], but in parallel: each resample has its own stream of the generator.
    /// Comparisons use this method.
    pub fn resample_in_parallel<T: Send>(self, n: usize, statistic: impl Fn(&[f64]) -> T + Sync) -> Vec<T> {
        if n == 0 {
            return Vec::new();
        }
        (0..self.resamples)
            .into_par_iter()
            .map_init(
                || vec![0.0; n],
                |weights, index| {
                    let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
                    generator.set_stream(u64::from(index));
                    draw(weights, &mut generator);
                    statistic(weights)
                },
            )
            .collect()
    }
}

fn draw(weights: &mut [f64], generator: &mut ChaCha8Rng) {
    weights.fill(0.0);
    for _ in 0..weights.len() {
        weights[generator.random_range(0..weights.len())] += 1.0;
    }
}

/// Returns the percentile interval (Efron and Tibshirani 1993, chapter 13), which leaves out the share `tail`
/// of the values on either side. `None` without values.
pub fn percentile_interval(values: &mut [f64], tail: f64) -> Option<Interval> {
    values.sort_by(f64::total_cmp);
    Some(Interval { low: quantile(values, tail)?, high: quantile(values, 1.0 - tail)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_count_draws_and_only_depend_on_the_seed() {
        let draw = |seed| Bootstrap { resamples: 3, seed }.resample_in_parallel(50, <[f64]>::to_vec);
        let weights = draw(1);
        for resample in &weights {
            assert!((resample.iter().sum::<f64>() - 50.0).abs() < 1e-12);
        }
        assert_eq!(weights, draw(1));
        assert_ne!(weights, draw(2));
        assert_ne!(weights[0], weights[1]);
        assert!(Bootstrap { resamples: 3, seed: 1 }.resample_in_parallel(0, <[f64]>::len).is_empty());
    }
}

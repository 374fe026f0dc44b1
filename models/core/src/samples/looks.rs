//! When samples are looked at, to decide whether they are enough.
//!
//! Bounds for a fixed number of samples may not be computed after each sample until they are narrow: the more
//! often one looks, the more often one of them is wrong. Look number `k` therefore has the share
//! `1 / (k (k + 1))` of the error, and the last one has the rest. All shares add up to the error.

use super::CONFIDENCE;

/// Number of samples at the first of several looks.
const FIRST: usize = 16;

/// A look at the first samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// Number of samples.
    pub samples: usize,
    /// Maximum probability with which a bound for this number of samples is wrong.
    pub(super) error: f64,
    /// The same for bounds that hold at all numbers of samples together.
    pub(super) error_of_all: f64,
    /// Whether no other look can end the sampling.
    pub(super) is_only: bool,
}

/// The looks at the samples of one answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Looks(Vec<Look>);

impl Looks {
    /// One look at all samples. `answers` answers are averaged, which share the error.
    pub fn once(samples: usize, answers: usize) -> Self {
        let error = (1.0 - CONFIDENCE) / answers.max(1) as f64;
        Self(vec![Look { samples, error, error_of_all: error, is_only: true }])
    }

    /// Looks after 16 samples, 32 and so on, and after `samples_max`.
    pub fn doubling(samples_max: usize) -> Self {
        let error = 1.0 - CONFIDENCE;
        let mut looks = Vec::new();
        let mut samples = FIRST.min(samples_max);
        loop {
            let number = looks.len() as f64 + 1.0;
            let is_last = samples == samples_max;
            let share = if is_last { 1.0 / number } else { 1.0 / (number * (number + 1.0)) };
            let is_only = is_last && looks.is_empty();
            looks.push(Look { samples, error: error * share, error_of_all: error, is_only });
            if is_last {
                return Self(looks);
            }
            samples = (2 * samples).min(samples_max);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Look> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_looks_share_the_error() {
        for (max, want) in [
            (1, vec![1]),
            (16, vec![16]),
            (64, vec![16, 32, 64]),
            (100, vec![16, 32, 64, 100]),
            (4096, vec![16, 32, 64, 128, 256, 512, 1024, 2048, 4096]),
        ] {
            let looks: Vec<Look> = Looks::doubling(max).iter().collect();
            assert_eq!(looks.iter().map(|look| look.samples).collect::<Vec<_>>(), want);
            let error: f64 = looks.iter().map(|look| look.error).sum();
            assert!((error - 0.05).abs() < 1e-12, "{max}: {error}");
            assert_eq!(looks[0].is_only, want.len() == 1);
        }
        let shared: Vec<Look> = Looks::once(64, 5).iter().collect();
        assert!((shared[0].error - 0.01).abs() < 1e-12 && shared[0].is_only);
    }
}

//! Statistics over plain numbers: moments, correlations, intervals, tests.
//!
//! Every formula names its source. What is not defined is `None`, never NaN, but for [`numpy`].

pub mod bootstrap;
pub mod kendall;
pub mod numpy;
pub mod paired;
pub mod weighted;
pub mod wilson;

use std::f64::consts::LN_10;

use serde::Serialize;

/// Both ends are in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Widened to hold `value`. The resamples of a biased statistic may all lie on one side of it.
    #[must_use]
    pub fn including(self, value: f64) -> Self {
        Self { low: self.low.min(value), high: self.high.max(value) }
    }

    pub fn excludes_zero(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// `sign(x) log10(|x| + 1)`: even near 0, by decades far from it; the scale of the NTL paper's logarithmic errors, in its
/// order of operations.
pub fn signed_log(value: f64) -> f64 {
    value.signum() * (value.abs() + 1.0).log10()
}

/// Whether the values are not all the same. A sum of squares cannot say so: the mean of equal values may be off by a
/// rounding, and what is left would be taken for variance.
pub fn varies(mut values: impl Iterator<Item = f64>) -> bool {
    // Adding 0 makes -0 the same as 0.
    values.next().is_some_and(|first| values.any(|value| (value + 0.0).total_cmp(&(first + 0.0)).is_ne()))
}

/// The inverse of [`signed_log`].
pub fn signed_exp(value: f64) -> f64 {
    value.signum() * (value.abs() * LN_10).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_logarithm_is_odd_and_undone_by_its_opposite() {
        // np.sign(x) * np.log10(np.abs(x) + 1)
        for (value, want) in [(0.0, 0.0), (9.0, 1.0), (-99.0, -2.0), (0.5, 0.17609125905568124)] {
            assert!((signed_log(value) - want).abs() < 1e-15, "{value}");
            assert!((signed_exp(want) - value).abs() < 1e-12, "{value}");
        }
    }
}

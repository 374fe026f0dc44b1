//! Statistics over plain numbers: moments, correlations, intervals, tests.
//!
//! Every formula names its source. An undefined figure is `None`, never NaN.

pub mod bootstrap;
pub mod difference;
pub mod holm;
pub mod kendall;
pub mod least_squares;
pub mod paired;
pub mod prediction_powered;
pub mod rogan_gladen;
pub mod simultaneous;
pub mod studentised;
pub mod weighted;
pub mod wilson;

use serde::Serialize;

/// 97.5% quantile of the normal distribution.
const Z_95: f64 = 1.959_963_984_540_054;

/// An interval that includes both ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Widens the interval to include `value`. The resamples of a biased statistic may all lie on one side of
    /// it.
    #[must_use]
    pub fn including(self, value: f64) -> Self {
        Self { low: self.low.min(value), high: self.high.max(value) }
    }

    pub fn excludes_zero(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Returns `true` if any two values differ. A sum of squares does not show this: rounding may move the mean
/// of equal values, and the rest would look like variance.
pub fn varies(mut values: impl Iterator<Item = f64>) -> bool {
    // Adding 0 makes -0 the same as 0.
    values.next().is_some_and(|first| values.any(|value| (value + 0.0).total_cmp(&(first + 0.0)).is_ne()))
}

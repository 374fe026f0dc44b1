//! What several measurements of the same thing say: their median and how far they are apart.

use std::fmt;

use serde::Serialize;

/// Median, smallest and largest of some numbers; of none, NaN.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Half are smaller; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of all these numbers.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let len = sorted.len();
        let median = f64::midpoint(at(len.saturating_sub(1) / 2), at(len / 2));
        Self { median, min: at(0), max: at(len.saturating_sub(1)) }
    }

    /// The same numbers in another unit.
    pub fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }
}

/// `median (min-max)`, each with as many decimals as are asked for.
impl fmt::Display for Spread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = out.precision().unwrap_or(1);
        write!(out, "{:.decimals$} ({:.decimals$}-{:.decimals$})", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_and_says_how_far_the_others_are() {
        assert_eq!(format!("{:.1}", Spread::of([3.0, 1.0, 2.0])), "2.0 (1.0-3.0)");
        assert_eq!(format!("{:.2}", Spread::of([4.0, 1.0]).times(2.0)), "5.00 (2.00-8.00)");
        assert_eq!(format!("{:.0}", Spread::of([])), "NaN (NaN-NaN)");
    }
}

//! Bounds of the mean of a bounded variable by betting (Waudby-Smith and Ramdas, "Estimating means of bounded
//! random variables by betting", JRSS B 86, 2024, section 4.4).
//!
//! A gambler bets that the mean is larger than `m`. If it is not, the capital is a supermartingale, and by
//! Ville's inequality it ever reaches `1 / error` with a probability of at most `error`. All `m` at which it
//! does are rejected. So the bounds hold at all numbers of samples together, and sampling may stop whenever
//! they are narrow enough. They become narrow with the variance, unlike Hoeffding's.

use crate::numbers::Interval;

/// Maximum share of the capital in a bet.
const SHARE_MAX: f64 = 0.75;

/// Halvings of an interval that contains a bound.
const HALVINGS: u32 = 30;

/// Returns bounds of the mean of `values` in `range`, in the order in which they were drawn. `planned`: the
/// number of values for which the bets are best, if it was fixed in advance. `None` without values.
pub(super) fn mean_bounds(
    values: &[f64],
    range: Interval,
    error: f64,
    planned: Option<usize>,
) -> Option<Interval> {
    let width = range.high - range.low;
    if values.is_empty() || width.is_nan() || width.is_infinite() || width < 0.0 {
        return None;
    }
    if width <= 0.0 {
        return Some(range);
    }
    let shares: Vec<f64> = values.iter().map(|value| ((value - range.low) / width).clamp(0.0, 1.0)).collect();
    let mirrored: Vec<f64> = shares.iter().map(|share| 1.0 - share).collect();
    let bets = bets(&shares, error / 2.0, planned);
    let low = least_mean(&shares, &bets, error / 2.0);
    let high = least_mean(&mirrored, &bets, error / 2.0);
    Some(Interval { low: range.low + low * width, high: range.high - high * width })
}

/// The bet on each value, which depends on the values before it only: the one that is best for their
/// variance.
fn bets(shares: &[f64], error: f64, planned: Option<usize>) -> Vec<f64> {
    let mut bets = Vec::with_capacity(shares.len());
    let (mut sum, mut squares, mut variance) = (0.5, 0.25, 0.25);
    for (index, share) in shares.iter().enumerate() {
        let count = index as f64 + 1.0;
        let horizon = planned.map_or(count * (1.0 + count).ln(), |planned| planned as f64);
        bets.push((2.0 * (1.0 / error).ln() / (variance * horizon)).sqrt());
        sum += share;
        let mean = sum / (count + 1.0);
        squares += (share - mean).powi(2);
        variance = squares / (count + 1.0);
    }
    bets
}

/// The largest mean that is rejected as too small, or 0.
fn least_mean(shares: &[f64], bets: &[f64], error: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if is_rejected(shares, bets, middle, error) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns whether bets on a mean above `mean` win too much. The capital falls as `mean` rises.
fn is_rejected(shares: &[f64], bets: &[f64], mean: f64, error: f64) -> bool {
    let mut capital = 1.0;
    for (share, bet) in shares.iter().zip(bets) {
        capital *= 1.0 + bet.min(SHARE_MAX / mean) * (share - mean);
        if capital >= 1.0 / error {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Interval = Interval { low: 0.0, high: 1.0 };

    #[test]
    fn bounds_contain_the_mean_of_the_values_and_become_narrow_with_their_variance() {
        let width = |values: &[f64]| {
            let bounds = mean_bounds(values, UNIT, 0.05, Some(values.len())).unwrap();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            assert!(bounds.low <= mean && mean <= bounds.high, "{mean} is outside {bounds:?}");
            bounds.high - bounds.low
        };
        let wide: Vec<f64> = (0..256).map(|index| f64::from(index % 2)).collect();
        let narrow: Vec<f64> = (0..256).map(|index| 0.5 + 0.01 * f64::from(index % 2)).collect();
        // Hoeffding's bounds have a width of 0.17 for both.
        assert!(width(&wide) < 0.2, "{}", width(&wide));
        assert!(width(&narrow) < 0.04, "{}", width(&narrow));
        assert!(width(&wide[..16]) > width(&wide[..64]));
    }

    #[test]
    fn a_mirrored_variable_has_mirrored_bounds_and_a_range_scales_them() {
        let values = [0.1, 0.9, 0.3, 0.2, 0.2, 0.7];
        let bounds = mean_bounds(&values, UNIT, 0.05, None).unwrap();
        let mirrored = mean_bounds(&values.map(|value| 1.0 - value), UNIT, 0.05, None).unwrap();
        assert!((mirrored.low - (1.0 - bounds.high)).abs() < 1e-8, "{bounds:?} {mirrored:?}");
        let range = Interval { low: -3.0, high: 7.0 };
        let scaled = mean_bounds(&values.map(|value| 10.0 * value - 3.0), range, 0.05, None).unwrap();
        assert!((scaled.low - (10.0 * bounds.low - 3.0)).abs() < 1e-7, "{bounds:?} {scaled:?}");
        let only = Interval { low: 2.0, high: 2.0 };
        assert_eq!(mean_bounds(&[2.0], only, 0.05, None), Some(only));
        assert_eq!(mean_bounds(&[], UNIT, 0.05, None), None);
        assert_eq!(mean_bounds(&[1.0], Interval { low: 0.0, high: f64::INFINITY }, 0.05, None), None);
    }
}

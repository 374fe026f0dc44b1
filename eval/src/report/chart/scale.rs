//! Scales of axes: the positions of values, and which values get a tick.

use std::f64::consts::LN_10;

use ntl_paper::figures::signed_log;

use crate::format::{power, tick};

/// Approximate number of ticks on an axis.
const TICKS: f64 = 6.0;
/// Maximum number of marked decades.
const DECADES: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Linear,
    /// Scaled by [`signed_log`].
    SignedLog,
}

impl Shape {
    /// Returns signed-log if a few values are much larger than most others, or if values are huge.
    pub fn fitting(values: impl Iterator<Item = f64>) -> Self {
        let mut sizes: Vec<f64> = values.map(f64::abs).collect();
        sizes.sort_by(f64::total_cmp);
        let at = |share: f64| sizes.get((share * sizes.len() as f64) as usize).copied().unwrap_or(0.0);
        let middle = at(0.5).max(1.0);
        let largest = sizes.last().copied().unwrap_or(0.0);
        let far_apart = at(0.98) > 10.0 * middle || largest > 100.0 * middle || largest > 1e100;
        if far_apart { Self::SignedLog } else { Self::Linear }
    }

    fn forward(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::SignedLog => signed_log(value),
        }
    }

    fn backward(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::SignedLog => signed_exp(value),
        }
    }
}

/// The range of an axis. Invariant: `low < high`, both finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    shape: Shape,
    low: f64,
    high: f64,
}

impl Scale {
    /// Creates a scale, widened if `low` and `high` are equal.
    pub fn new(shape: Shape, low: f64, high: f64) -> Self {
        let widen = if high > low { 0.0 } else { 0.5_f64.max(low.abs() * 0.1) };
        Self { shape, low: low - widen, high: high + widen }
    }

    /// Creates a scale from 0 to a little above the largest value.
    pub fn from_zero(shape: Shape, largest: f64) -> Self {
        let room = match shape {
            Shape::Linear => 1.06,
            Shape::SignedLog => 1.5,
        };
        Self::new(shape, 0.0, (largest * room).max(1e-9))
    }

    /// Creates a scale from 0 to 1.
    pub fn share() -> Self {
        Self::new(Shape::Linear, 0.0, 1.0)
    }

    /// Maps a value to 0 at the lower end and 1 at the upper end. Values outside are clamped.
    pub fn unit(&self, value: f64) -> f64 {
        let [low, high, at] = [self.low, self.high, value].map(|value| self.shape.forward(value));
        ((at - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// The inverse of [`Self::unit`].
    pub fn at(&self, unit: f64) -> f64 {
        let [low, high] = [self.low, self.high].map(|end| self.shape.forward(end));
        self.shape.backward(low + unit * (high - low)).clamp(self.low, self.high)
    }

    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns round values in ascending order, with their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let (values, written): (_, fn(f64) -> String) = match self.shape {
            Shape::Linear => (self.even_ticks(), tick),
            Shape::SignedLog => (self.decades(), power),
        };
        values.into_iter().map(|value| (value, written(value))).collect()
    }

    fn even_ticks(&self) -> Vec<f64> {
        let raw = (self.high - self.low) / TICKS;
        let decade = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|nice| nice * decade).into_iter().find(|&step| step >= raw);
        let step = step.unwrap_or(raw);
        let first = (self.low / step).ceil();
        let last = (self.high / step + 1e-9).floor();
        // Adding 0 turns -0 into 0.
        (0..=(last - first) as u32).map(|index| (first + f64::from(index)) * step + 0.0).collect()
    }

    /// Returns 0 and powers of ten on both sides of it, at most `DECADES` of them.
    fn decades(&self) -> Vec<f64> {
        let decades = |end: f64| if end >= 1.0 { end.log10().floor() as i32 } else { -1 };
        let below = decades(-self.low);
        let above = decades(self.high);
        let shown = f64::from(above.max(0) + below.max(0)) / DECADES;
        let step = (shown.ceil() as i32).max(1);
        let side = |last: i32| (0..=last).filter(move |exponent| exponent % step == 0);
        let mut ticks: Vec<f64> = side(below).map(|exponent| -10_f64.powi(exponent)).collect();
        ticks.reverse();
        ticks.extend(Some(0.0).filter(|&zero| self.holds(zero)));
        ticks.extend(side(above).map(|exponent| 10_f64.powi(exponent)));
        // If a side has several ticks, the tick at 1 is too close to the 0.
        let crowded = below.max(above) > 3 && self.holds(0.0);
        ticks.retain(|tick| self.holds(*tick) && !(crowded && (tick.abs() - 1.0).abs() < 1e-9));
        ticks
    }
}

/// The inverse of [`signed_log`].
fn signed_exp(value: f64) -> f64 {
    value.signum() * (value.abs() * LN_10).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        for (shape, low, high, want) in [
            (Shape::Linear, 0.0, 1.0, "0 0.2 0.4 0.6 0.8 1"),
            (Shape::Linear, -7.0, 33.0, "0 10 20 30"),
            (Shape::SignedLog, -150.0, 30.0, "−100 −10 −1 0 1 10"),
            (Shape::SignedLog, 0.0, 2e6, "0 10 100 10³ 10⁴ 10⁵ 10⁶"),
            (Shape::SignedLog, -1e6, 1e6, "−10⁶ −10⁴ −100 0 100 10⁴ 10⁶"),
        ] {
            let scale = Scale::new(shape, low, high);
            let ticks = scale.ticks();
            assert!(ticks.iter().all(|&(value, _)| scale.holds(value)), "{ticks:?}");
            assert!(ticks.is_sorted_by(|a, b| a.0 < b.0), "{ticks:?}");
            let written: Vec<String> = ticks.into_iter().map(|(_, written)| written).collect();
            assert_eq!(written.join(" "), want);
        }
    }

    #[test]
    fn values_map_to_0_to_1_and_values_outside_are_clamped() {
        let scale = Scale::new(Shape::SignedLog, -99.0, 99.0);
        for (value, want) in [(-99.0, 0.0), (0.0, 0.5), (9.0, 0.75), (1e9, 1.0), (-1e9, 0.0)] {
            assert!((scale.unit(value) - want).abs() < 1e-12, "{value}");
            assert!((scale.at(want) - value.clamp(-99.0, 99.0)).abs() < 1e-9, "{value}");
        }
        assert!((Scale::new(Shape::Linear, 3.0, 3.0).unit(3.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_few_huge_values_need_a_signed_log() {
        let small = (0..100).map(f64::from);
        assert_eq!(Shape::fitting(small.clone()), Shape::Linear);
        assert_eq!(Shape::fitting(small.chain([1e6, -1e6, 1e7])), Shape::SignedLog);
        assert_eq!(Shape::fitting([1.0, 2.0, 3e5].into_iter()), Shape::SignedLog);
        assert_eq!(Shape::fitting([1e308, -1e308].into_iter()), Shape::SignedLog);
        assert_eq!(Shape::fitting(std::iter::empty()), Shape::Linear);
    }

    #[test]
    fn the_signed_logarithm_is_odd_and_has_an_inverse() {
        // np.sign(x) * np.log10(np.abs(x) + 1)
        for (value, want) in [(0.0, 0.0), (9.0, 1.0), (-99.0, -2.0), (0.5, 0.17609125905568124)] {
            assert!((signed_log(value) - want).abs() < 1e-15, "{value}");
            assert!((signed_exp(want) - value).abs() < 1e-12, "{value}");
        }
    }
}

//! Scales of axes: where values lie, and which of them get a tick.

use crate::format::{power, tick};
use crate::stats::{signed_exp, signed_log};

/// About how many ticks an axis carries.
const TICKS: f64 = 6.0;
/// At most how many decades are marked.
const DECADES: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Linear,
    /// By [`signed_log`].
    SignedLog,
}

impl Shape {
    /// Signed-log where few values are much larger than most others, and where values are huge.
    pub fn fitting(values: impl Iterator<Item = f64>) -> Self {
        let mut sizes: Vec<f64> = values.map(f64::abs).collect();
        sizes.sort_by(f64::total_cmp);
        let at = |share: f64| sizes.get((share * sizes.len() as f64) as usize).copied().unwrap_or(0.0);
        let (middle, largest) = (at(0.5).max(1.0), sizes.last().copied().unwrap_or(0.0));
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

/// Invariant: `low < high`, both finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    shape: Shape,
    low: f64,
    high: f64,
}

impl Scale {
    /// Widened where `low` and `high` are equal.
    pub fn new(shape: Shape, low: f64, high: f64) -> Self {
        let widen = if high > low { 0.0 } else { 0.5_f64.max(low.abs() * 0.1) };
        Self { shape, low: low - widen, high: high + widen }
    }

    /// From 0 to a little above the largest value.
    pub fn from_zero(shape: Shape, largest: f64) -> Self {
        let room = match shape {
            Shape::Linear => 1.06,
            Shape::SignedLog => 1.5,
        };
        Self::new(shape, 0.0, (largest * room).max(1e-9))
    }

    /// From 0 to 1.
    pub fn share() -> Self {
        Self::new(Shape::Linear, 0.0, 1.0)
    }

    /// 0 at the lower end, 1 at the upper one; values outside are clamped.
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

    /// Round values in rising order, with their labels.
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
        let (first, last) = ((self.low / step).ceil(), (self.high / step + 1e-9).floor());
        // Adding 0 turns -0 into 0.
        (0..=(last - first) as u32).map(|index| (first + f64::from(index)) * step + 0.0).collect()
    }

    /// 0 and powers of ten on both sides of it, at most `DECADES` of them.
    fn decades(&self) -> Vec<f64> {
        let decades = |end: f64| if end >= 1.0 { end.log10().floor() as i32 } else { -1 };
        let (below, above) = (decades(-self.low), decades(self.high));
        let shown = f64::from(above.max(0) + below.max(0)) / DECADES;
        let step = (shown.ceil() as i32).max(1);
        let side = |last: i32| (0..=last).filter(move |exponent| exponent % step == 0);
        let mut ticks: Vec<f64> = side(below).map(|exponent| -10_f64.powi(exponent)).collect();
        ticks.reverse();
        ticks.extend(Some(0.0).filter(|&zero| self.holds(zero)));
        ticks.extend(side(above).map(|exponent| 10_f64.powi(exponent)));
        // Where a side has several ticks, the one at 1 stands too close to the 0.
        let crowded = below.max(above) > 3 && self.holds(0.0);
        ticks.retain(|tick| self.holds(*tick) && !(crowded && (tick.abs() - 1.0).abs() < 1e-9));
        ticks
    }
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
    fn values_lie_between_0_and_1_and_outside_ones_on_the_ends() {
        let scale = Scale::new(Shape::SignedLog, -99.0, 99.0);
        for (value, want) in [(-99.0, 0.0), (0.0, 0.5), (9.0, 0.75), (1e9, 1.0), (-1e9, 0.0)] {
            assert!((scale.unit(value) - want).abs() < 1e-12, "{value}");
            assert!((scale.at(want) - value.clamp(-99.0, 99.0)).abs() < 1e-9, "{value}");
        }
        assert!((Scale::new(Shape::Linear, 3.0, 3.0).unit(3.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_few_huge_values_ask_for_a_signed_log() {
        let small = (0..100).map(f64::from);
        assert_eq!(Shape::fitting(small.clone()), Shape::Linear);
        assert_eq!(Shape::fitting(small.chain([1e6, -1e6, 1e7])), Shape::SignedLog);
        assert_eq!(Shape::fitting([1.0, 2.0, 3e5].into_iter()), Shape::SignedLog);
        assert_eq!(Shape::fitting([1e308, -1e308].into_iter()), Shape::SignedLog);
        assert_eq!(Shape::fitting(std::iter::empty()), Shape::Linear);
    }
}

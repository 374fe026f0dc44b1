//! The loss of whole numbers rather than of their digits: ntloss's `NumberLevelLoss`.

use super::position::Position;

/// The rounding unit of single precision, which the original adds to a denominator; part of its definition.
const EPSILON: f64 = f32::EPSILON as f64;

/// One position of a target whose number tokens are digits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Digit {
    /// The digit that the label is, if it is one.
    pub value: Option<f64>,
    /// The digit that the model expects.
    pub expectation: f64,
    /// Probability of all digits together.
    pub mass: f64,
    /// Whether the label is a decimal point.
    pub is_point: bool,
}

/// Which digits are one number, and what its error costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberLevel {
    /// Whether a point between two digits belongs to the number; otherwise `12.34` is two numbers. The point has no place
    /// (1234), which changes nothing because the error is relative.
    pub float_level: bool,
    /// Digits whose places are told apart. Those in front of them all have the place of the last one, 10 to the power of
    /// this less one.
    pub max_number_length: usize,
    /// As in [`super::NumberLoss`], with a largest loss of 1 and the mass at the number's first digit.
    pub reweigh: bool,
}

impl Default for NumberLevel {
    /// What ntloss takes, but for `reweigh`, whose author warns of it here.
    fn default() -> Self {
        Self { float_level: false, max_number_length: 20, reweigh: false }
    }
}

impl Digit {
    /// Reads a position. Where no digit is possible, 0 is expected; there the original is NaN.
    pub fn new(position: &Position<'_>, label: u32, is_point: bool) -> Self {
        Self {
            value: position.tokens().value(label),
            expectation: position.expectation().unwrap_or(0.0),
            mass: position.number_mass(),
            is_point,
        }
    }
}

impl NumberLevel {
    /// The loss of each number of a target, at the position of its first digit: `|x - y| / (|x| + |y| + 1.2e-7)`, where `y`
    /// has the label's digits and `x` the expected ones. `None` everywhere else.
    ///
    /// This is ntloss's `NumberLevelLoss`. Its older `NumberLevelLossLooped` gives the same, except that with `float_level`
    /// it puts a number that begins with a point, such as the `.6` of a token `▁4` and `.`, `6`, at the point.
    pub fn losses(&self, target: &[Digit]) -> Vec<Option<f64>> {
        let mut losses = vec![None; target.len()];
        let mut at = 0;
        while at < target.len() {
            let end = self.end_of_number(target, at);
            if end > at {
                losses[at] = Some(self.loss(&target[at..end]));
            }
            at = end.max(at + 1);
        }
        losses
    }

    /// Where the number ends that begins at `start`; `start` itself where none does.
    fn end_of_number(&self, target: &[Digit], start: usize) -> usize {
        let is_digit = |at: usize| target.get(at).is_some_and(|digit| digit.value.is_some());
        let mut end = start;
        loop {
            let is_inner_point =
                self.float_level && end > start && target.get(end).is_some_and(|it| it.is_point);
            if is_digit(end) {
                end += 1;
            } else if is_inner_point && is_digit(end + 1) {
                end += 2;
            } else {
                return end;
            }
        }
    }

    fn loss(&self, number: &[Digit]) -> f64 {
        let digits = number.iter().rev().filter_map(|digit| Some((digit.value?, digit.expectation)));
        let place_max = i32::try_from(self.max_number_length.saturating_sub(1)).unwrap_or(i32::MAX);
        let (mut wanted, mut expected) = (0.0, 0.0);
        for (place, (value, expectation)) in (0..).zip(digits) {
            let scale = 10.0_f64.powi(place_max.min(place));
            wanted += value * scale;
            expected += expectation * scale;
        }
        let loss = f64::abs(expected - wanted) / (expected.abs() + wanted.abs() + EPSILON);
        let mass = number.first().map_or(0.0, |digit| digit.mass);
        if self.reweigh { loss * mass + 1.01 * (1.0 - mass) } else { loss }
    }
}

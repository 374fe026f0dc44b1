//! The loss of a whole number that is written in digits: `NumberLevelLoss` of ntloss, with its default
//! `float_level=False`.
//!
//! A number is a run of labels that are digits. `y` is its value, and `e` the value with the expected digit
//! in place of each label's. The loss is the symmetric relative error `|e - y| / (|e| + |y|)`, from 0 to 1.

use super::number_loss::TEXT_COST;
use super::position::DigitScore;

/// Maximum power of ten, as in ntloss (`max_number_length=20`). The first digits of a longer number all have
/// this power.
const POWER_MAX: i32 = 19;

/// Returns one loss per number, at its first digit. The other positions have none.
///
/// `digits`: one entry per label of a target, `None` for a label that is not a digit. `reweigh`: like
/// [`NumberLoss::reweigh`](super::NumberLoss::reweigh), with the mass of the first digit. The loss is 1 if
/// one of the number's positions has no probability on digits (ntloss returns NaN).
pub fn level_losses(digits: &[Option<DigitScore>], reweigh: bool) -> Vec<Option<f64>> {
    let mut losses = Vec::with_capacity(digits.len());
    for run in digits.chunk_by(|left, right| left.is_some() == right.is_some()) {
        let number: Vec<DigitScore> = run.iter().flatten().copied().collect();
        let loss = number.first().map(|first| {
            let loss = relative_error(&number);
            if reweigh { loss * first.mass + TEXT_COST * (1.0 - first.mass) } else { loss }
        });
        losses.push(loss);
        losses.resize(losses.len() + run.len() - 1, None);
    }
    losses
}

fn relative_error(number: &[DigitScore]) -> f64 {
    let (mut value, mut expected) = (0.0, 0.0);
    for (power, score) in (0..).zip(number.iter().rev()) {
        let Some(digit) = score.expected else { return 1.0 };
        let scale = 10.0_f64.powi(POWER_MAX.min(power));
        value += scale * score.digit;
        expected += scale * digit;
    }
    // The constant makes 0 for 0 a loss of 0.
    (expected - value).abs() / (expected.abs() + value.abs() + f64::from(f32::EPSILON))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(digit: f64, expected: f64) -> Option<DigitScore> {
        Some(DigitScore { digit, expected: Some(expected), mass: 0.5 })
    }

    #[track_caller]
    fn assert_near(got: &[Option<f64>], want: &[Option<f64>]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert_eq!(got.is_some(), want.is_some(), "{got:?} {want:?}");
            assert!((got.unwrap_or(0.0) - want.unwrap_or(0.0)).abs() < 1e-6, "{got:?} {want:?}");
        }
    }

    #[test]
    fn a_number_has_the_symmetric_relative_error_of_its_expected_digits() {
        // 12, expected as 1.5 and 2.5: 17.5. Then a word, and 0 as it is expected.
        let digits = [score(1.0, 1.5), score(2.0, 2.5), None, score(0.0, 0.0)];
        let twelve = 5.5 / 29.5;
        assert_near(&level_losses(&digits, false), &[Some(twelve), None, None, Some(0.0)]);
        let weighed = [Some(0.5 * twelve + 0.505), None, None, Some(0.505)];
        assert_near(&level_losses(&digits, true), &weighed);
        assert_near(&level_losses(&[None, None], false), &[None, None]);
        assert_near(&level_losses(&[], false), &[]);
    }

    #[test]
    fn digits_without_probability_and_long_numbers_have_a_loss() {
        let unknown = DigitScore { digit: 3.0, expected: None, mass: 0.0 };
        assert_near(&level_losses(&[score(1.0, 1.0), Some(unknown)], false), &[Some(1.0), None]);
        let long = vec![score(9.0, 4.5); 400];
        let losses = level_losses(&long, false);
        assert!((losses[0].unwrap() - 1.0 / 3.0).abs() < 1e-9, "{losses:?}");
    }
}

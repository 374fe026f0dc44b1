//! Compares a stated number with the true one digit by digit, as the NUPA benchmark does (Yang et al. 2024,
//! arXiv:2411.03766): integers and exponents from the units, decimals from the decimal point.

use super::forms::{Digits, Form};

/// Scores of the digits of one answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DigitScores {
    /// Whether the answer has the form and exactly the digits of the truth.
    pub exact: bool,
    /// Share of the true digits that the answer has at the same place.
    pub matched: f64,
    /// Absolute difference between the numbers of digits.
    pub length_difference: f64,
}

impl DigitScores {
    /// Scores a stated number. An answer without a number, or with one in another form, has no digits.
    /// `None` if `truth` is not in the form.
    pub fn of(form: Form, stated: Option<&str>, truth: &str) -> Option<Self> {
        let truth = form.groups(truth)?;
        let stated = stated.map(|text| text.replace(',', ""));
        let stated = stated.as_deref().and_then(|text| form.groups(text)).unwrap_or_default();
        let length =
            |groups: &[Digits<'_>]| groups.iter().map(|group| group.text().len()).sum::<usize>() as f64;
        let matched: usize = stated.iter().zip(&truth).map(|(stated, truth)| common(*stated, *truth)).sum();
        Some(Self {
            exact: stated == truth,
            matched: matched as f64 / length(&truth),
            length_difference: (length(&stated) - length(&truth)).abs(),
        })
    }
}

/// Returns the number of places with equal digits.
fn common(stated: Digits<'_>, truth: Digits<'_>) -> usize {
    let stated = stated.text().bytes();
    match truth {
        Digits::FromRight(truth) => stated.rev().zip(truth.bytes().rev()).filter(|(a, b)| a == b).count(),
        Digits::FromLeft(truth) => stated.zip(truth.bytes()).filter(|(a, b)| a == b).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_aligned_at_the_units_and_at_the_point() {
        for (form, stated, truth, exact, matched, length_difference) in [
            (Form::Integer, Some("1287"), "1287", true, 1.0, 0.0),
            (Form::Integer, Some("1,287"), "1287", true, 1.0, 0.0),
            (Form::Integer, Some("287"), "1287", false, 0.75, 1.0),
            (Form::Integer, Some("11287"), "1287", false, 1.0, 1.0),
            (Form::Integer, Some("128"), "1287", false, 0.0, 1.0),
            (Form::Integer, Some("1287.0"), "1287", false, 0.0, 4.0),
            (Form::Decimal, Some("2.54"), "12.5", false, 2.0 / 3.0, 0.0),
            (Form::Decimal, Some("12.05"), "12.5", false, 2.0 / 3.0, 1.0),
            (Form::Decimal, Some("12.50"), "12.5", false, 1.0, 1.0),
            (Form::Fraction, Some("7/31"), "17/31", false, 0.75, 1.0),
            (Form::Scientific, Some("1.2e11"), "1.25e1", false, 0.75, 0.0),
            (Form::Scientific, None, "1.25e1", false, 0.0, 4.0),
        ] {
            let want = DigitScores { exact, matched, length_difference };
            assert_eq!(DigitScores::of(form, stated, truth), Some(want), "{stated:?} {truth}");
        }
        assert_eq!(DigitScores::of(Form::Fraction, Some("1/2"), "0.5"), None);
    }
}

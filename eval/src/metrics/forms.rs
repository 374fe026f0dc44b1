//! Exact numbers, written in four forms: integers, decimals, fractions and scientific notation.
//!
//! In: texts of untrusted length. Out: rationals of bounded size, and the only text of a form that has a
//! value. Invariant: for a value that a form can write, [`exact`] returns that value for the text.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{ToPrimitive, Zero};
use serde::{Deserialize, Serialize};

/// Longer texts have no value, so that an answer cannot use much time or memory.
const CHARACTERS_MAX: usize = 1_000;

/// Larger exponents of ten have no value.
const EXPONENT_MAX: usize = 1_000;

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// `123`.
    Integer,
    /// `12.5`, with at least one decimal.
    Decimal,
    /// `7/13`, irreducible.
    Fraction,
    /// `1.25e4`, with one digit from 1 to 9 before the point and at least one after it.
    Scientific,
}

impl Form {
    /// Returns the text of a number that is not negative, or `None` if the form cannot state it exactly.
    pub fn write(self, value: &BigRational) -> Option<String> {
        match self {
            Self::Integer => value.is_integer().then(|| value.to_integer().to_string()),
            Self::Decimal => {
                let (digits, decimals) = digits(value)?;
                let digits = format!("{digits:0>width$}", width = decimals + 1);
                let (whole, fraction) = digits.split_at(digits.len() - decimals);
                Some(format!("{whole}.{}", if fraction.is_empty() { "0" } else { fraction }))
            }
            Self::Fraction => Some(format!("{}/{}", value.numer(), value.denom())),
            Self::Scientific => {
                let (digits, decimals) = digits(value)?;
                let exponent = if value.is_zero() { 0 } else { digits.len() as i64 - 1 - decimals as i64 };
                let (first, rest) = digits.split_at(1);
                let rest = rest.trim_end_matches('0');
                Some(format!("{first}.{}e{exponent}", if rest.is_empty() { "0" } else { rest }))
            }
        }
    }

    /// Returns whether a text is in this form, with or without separators of thousands.
    pub fn has(self, text: &str) -> bool {
        self.groups(&text.replace(',', "")).is_some()
    }

    /// Returns the groups of digits in a text of this form, or `None` if the text is not in this form.
    pub(super) fn groups(self, text: &str) -> Option<Vec<Digits<'_>>> {
        let groups = match self {
            Self::Integer => vec![Digits::FromRight(text)],
            Self::Decimal => decimal_groups(text)?.to_vec(),
            Self::Fraction => {
                let (above, below) = text.split_once('/')?;
                vec![Digits::FromRight(above), Digits::FromRight(below)]
            }
            Self::Scientific => {
                let (mantissa, exponent) = text.split_once(['e', 'E'])?;
                let exponent = exponent.strip_prefix('+').unwrap_or(exponent);
                [&decimal_groups(mantissa)?[..], &[Digits::FromRight(exponent)]].concat()
            }
        };
        for group in &groups {
            let text = group.text();
            if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
        }
        Some(groups)
    }
}

fn decimal_groups(text: &str) -> Option<[Digits<'_>; 2]> {
    let (whole, fraction) = text.split_once('.')?;
    Some([Digits::FromRight(whole), Digits::FromLeft(fraction)])
}

/// Digits, and the end at which two groups are aligned to compare them digit by digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digits<'a> {
    /// The units.
    FromRight(&'a str),
    /// The decimal point.
    FromLeft(&'a str),
}

impl<'a> Digits<'a> {
    pub(super) fn text(self) -> &'a str {
        match self {
            Self::FromRight(text) | Self::FromLeft(text) => text,
        }
    }
}

/// Returns the digits of a finite decimal without leading zeros, and how many of them are decimals.
fn digits(value: &BigRational) -> Option<(String, usize)> {
    let ten = BigRational::from(BigInt::from(10));
    let mut scaled = value.clone();
    for decimals in 0..=EXPONENT_MAX {
        if scaled.is_integer() {
            return Some((scaled.to_integer().to_string(), decimals));
        }
        scaled *= &ten;
    }
    None
}

/// Returns the value of a number in any form, with or without a minus and separators of thousands.
pub fn exact(text: &str) -> Option<BigRational> {
    if text.len() > CHARACTERS_MAX {
        return None;
    }
    let text = text.replace(',', "");
    if let Some((above, below)) = text.split_once('/') {
        let below: BigInt = below.parse().ok()?;
        let above: BigInt = above.parse().ok()?;
        return (!below.is_zero()).then(|| BigRational::new(above, below));
    }
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: BigInt = format!("{whole}{fraction}").parse().ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let is_bounded = exponent.unsigned_abs() as usize <= EXPONENT_MAX;
    is_bounded.then(|| BigRational::from(digits) * BigRational::from(BigInt::from(10)).pow(exponent))
}

/// Returns the nearest `f64`, or `None` if it would be infinite.
pub fn nearest(value: &BigRational) -> Option<f64> {
    value.to_f64().filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_one_text_for_a_value() {
        for (text, integer, decimal, fraction, scientific) in [
            ("0", Some("0"), Some("0.0"), "0/1", Some("0.0e0")),
            ("120", Some("120"), Some("120.0"), "120/1", Some("1.2e2")),
            ("1.50", None, Some("1.5"), "3/2", Some("1.5e0")),
            ("0.0625", None, Some("0.0625"), "1/16", Some("6.25e-2")),
            ("10/4", None, Some("2.5"), "5/2", Some("2.5e0")),
            ("1/3", None, None, "1/3", None),
            ("12.5e3", Some("12500"), Some("12500.0"), "12500/1", Some("1.25e4")),
            ("1,234.5", None, Some("1234.5"), "2469/2", Some("1.2345e3")),
        ] {
            let value = exact(text).unwrap();
            let written = [Form::Integer, Form::Decimal, Form::Fraction, Form::Scientific]
                .map(|form| form.write(&value));
            let want = [integer, decimal, Some(fraction), scientific].map(|text| text.map(str::to_owned));
            assert_eq!(written, want, "{text}");
            for text in written.into_iter().flatten() {
                assert_eq!(exact(&text).unwrap(), value, "{text}");
            }
        }
    }

    #[test]
    fn texts_without_a_bounded_value_have_none() {
        let long = "9".repeat(CHARACTERS_MAX + 1);
        for text in ["", "x", "1/0", "1.5/2", "1e", "1e1001", "1e-1001", "1e99999999999", "--1", &long] {
            assert_eq!(exact(text), None, "{text:.20}");
        }
        assert_eq!(nearest(&exact("1e400").unwrap()), None);
        assert_eq!(nearest(&exact("-1/4").unwrap()), Some(-0.25));
    }

    #[test]
    fn only_digits_are_in_a_form() {
        for (form, text) in [
            (Form::Integer, "-1"),
            (Form::Integer, "1.0"),
            (Form::Decimal, "1"),
            (Form::Decimal, ".5"),
            (Form::Fraction, "3"),
            (Form::Scientific, "12e3"),
            (Form::Scientific, "1.2e-3"),
        ] {
            assert_eq!(form.groups(text), None, "{text}");
        }
        let want = [Digits::FromRight("1"), Digits::FromLeft("25"), Digits::FromRight("4")];
        assert_eq!(Form::Scientific.groups("1.25E+4").unwrap(), want);
    }
}

//! Exact decimal numbers, written digit by digit and converted to `f64` once.

use std::fmt;

/// Most digits on either side of the point that fit.
pub(super) const DIGITS_MAX: u8 = 20;

/// A decimal number with up to 20 digits on each side of the point. Equality is equality of the value only
/// after [`Decimal::canonical`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal {
    negative: bool,
    integer: u128,
    fraction: u128,
    decimals: u8,
}

impl Decimal {
    /// Before the first digit.
    pub(super) const ZERO: Self = Self { negative: false, integer: 0, fraction: 0, decimals: 0 };

    /// The same digits with a minus in front.
    pub(super) fn negated(self) -> Self {
        Self { negative: !self.negative, ..self }
    }

    /// Appends a digit (0 to 9) before the point. The caller keeps to 20 of them.
    pub(super) fn with_integer_digit(self, digit: u8) -> Self {
        Self { integer: self.integer * 10 + u128::from(digit), ..self }
    }

    /// Appends a digit (0 to 9) after the point. The caller keeps to 20 of them.
    pub(super) fn with_decimal(self, digit: u8) -> Self {
        Self { fraction: self.fraction * 10 + u128::from(digit), decimals: self.decimals + 1, ..self }
    }

    /// Whether a minus is written in front.
    pub(super) fn is_negative(self) -> bool {
        self.negative
    }

    /// Digits written after the point.
    pub(super) fn decimals(self) -> u8 {
        self.decimals
    }

    /// The one spelling of this value: no trailing decimal zeros, no negative zero.
    pub fn canonical(mut self) -> Self {
        while self.decimals > 0 && self.fraction.is_multiple_of(10) {
            self.fraction /= 10;
            self.decimals -= 1;
        }
        self.negative &= self.integer != 0 || self.fraction != 0;
        self
    }

    /// The nearest `f64`. At most 41 characters are read, so it is finite.
    pub fn to_f64(self) -> f64 {
        self.to_string().parse().unwrap_or(0.0)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        write!(f, "{sign}{}", self.integer)?;
        if self.decimals > 0 {
            write!(f, ".{:0width$}", self.fraction, width = usize::from(self.decimals))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        let (digits, negative) = text.strip_prefix('-').map_or((text, false), |digits| (digits, true));
        let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let value = integer.bytes().fold(Decimal::ZERO, |value, byte| value.with_integer_digit(byte - b'0'));
        let value = fraction.bytes().fold(value, |value, byte| value.with_decimal(byte - b'0'));
        if negative { value.negated() } else { value }
    }

    #[test]
    fn spellings_of_one_value_have_one_canonical_form() {
        for (spelling, canonical) in [
            ("007", "7"),
            ("7.0", "7"),
            ("7.50", "7.5"),
            ("-0", "0"),
            ("-0.00", "0"),
            ("-0.05", "-0.05"),
            ("100", "100"),
        ] {
            assert_eq!(decimal(spelling).canonical().to_string(), canonical, "{spelling}");
        }
    }

    #[test]
    fn values_are_the_nearest_f64() {
        for (text, value) in
            [("4.35", 4.35), ("-17", -17.0), ("0.1", 0.1), ("12345678901234567890", 12345678901234567890.0)]
        {
            assert_eq!(decimal(text).to_f64().to_bits(), f64::to_bits(value), "{text}");
        }
        let longest = "9".repeat(20) + "." + &"9".repeat(20);
        assert_eq!(decimal(&longest).to_string(), longest);
    }
}

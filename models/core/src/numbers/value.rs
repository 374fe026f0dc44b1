//! The exact value of a number, so that all its spellings are one value.

use std::fmt;

use super::decimal::Decimal;

/// An exact value in canonical form: equal values are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberValue {
    /// A number that is spelt in digits.
    Decimal(Decimal),
    /// A number in scientific notation. The numbers of one vocabulary have one base.
    Scaled(Scaled),
    Special(SpecialValue),
}

/// A value that is not a finite number. Some vocabularies have a token for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialValue {
    Nan,
    Infinity,
    NegativeInfinity,
    /// Whatever training marked as invalid.
    Invalid,
}

/// Digits times a power of their base, not divisible by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scaled {
    negative: bool,
    digits: u64,
    base: u8,
    exponent: i32,
}

impl Scaled {
    /// `digits` times `base` (at least 2) to the power of `exponent`.
    pub(super) fn new(negative: bool, mut digits: u64, base: u8, mut exponent: i32) -> Self {
        if digits == 0 {
            return Self { negative: false, digits, base, exponent: 0 };
        }
        while digits.is_multiple_of(base.into()) {
            digits /= u64::from(base);
            exponent += 1;
        }
        Self { negative, digits, base, exponent }
    }

    /// The nearest `f64` in base 10 and in powers of two; in other bases a neighbour of it.
    pub fn to_f64(self) -> f64 {
        let magnitude = if self.base == 10 {
            format!("{}e{}", self.digits, self.exponent).parse().unwrap_or(f64::INFINITY)
        } else {
            let power = f64::from(self.base).powi(self.exponent.abs());
            let digits = self.digits as f64;
            if self.exponent < 0 { digits / power } else { digits * power }
        };
        if self.negative { -magnitude } else { magnitude }
    }
}

impl NumberValue {
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Decimal(value) => value.to_f64(),
            Self::Scaled(value) => value.to_f64(),
            Self::Special(SpecialValue::Infinity) => f64::INFINITY,
            Self::Special(SpecialValue::NegativeInfinity) => f64::NEG_INFINITY,
            Self::Special(SpecialValue::Nan | SpecialValue::Invalid) => f64::NAN,
        }
    }

    pub fn is_special(self) -> bool {
        matches!(self, Self::Special(_))
    }
}

impl From<Decimal> for NumberValue {
    fn from(value: Decimal) -> Self {
        Self::Decimal(value.canonical())
    }
}

impl fmt::Display for NumberValue {
    /// Writes an exponent only if the digits without one would not fit into a [`Decimal`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decimal(value) => value.fmt(f),
            Self::Scaled(value) => {
                let value = value.to_f64();
                let is_short = value == 0.0 || (1e-20..1e20).contains(&value.abs());
                if is_short { write!(f, "{value}") } else { write!(f, "{value:e}") }
            }
            Self::Special(_) => write!(f, "{}", self.to_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_value_are_equal() {
        for (a, b) in [((160, 1), (16, 2)), ((0, 7), (0, -3)), ((5000, -3), (5, 0))] {
            assert_eq!(Scaled::new(true, a.0, 10, a.1), Scaled::new(true, b.0, 10, b.1), "{a:?} {b:?}");
        }
        assert_eq!(Scaled::new(true, 0, 10, 0), Scaled::new(false, 0, 10, 0));
        assert_ne!(Scaled::new(true, 5, 10, 0), Scaled::new(false, 5, 10, 0));
        assert_eq!(Scaled::new(false, 12, 2, -1), Scaled::new(false, 3, 2, 1));
    }

    #[test]
    fn values_are_the_nearest_f64_and_print_without_zeros_that_say_nothing() {
        for (digits, base, exponent, value, text) in [
            (12, 10, -1, 1.2, "1.2"),
            (89_447, 10, -3, 89.447, "89.447"),
            (99_999, 10, 95, 9.9999e99, "9.9999e99"),
            (1, 10, -99, 1e-99, "1e-99"),
            (3, 2, -2, 0.75, "0.75"),
            (15, 16, -255, 15.0 * 2.0_f64.powi(-1020), "1.3350443151043208e-306"),
        ] {
            let number = Scaled::new(false, digits, base, exponent);
            assert_eq!(number.to_f64().to_bits(), f64::to_bits(value));
            assert_eq!(NumberValue::Scaled(number).to_string(), text);
            assert_eq!(Scaled::new(true, digits, base, exponent).to_f64().to_bits(), f64::to_bits(-value));
        }
        assert_eq!(NumberValue::Scaled(Scaled::new(true, 0, 10, 3)).to_string(), "0");
    }
}

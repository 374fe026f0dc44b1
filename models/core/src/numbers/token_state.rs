//! A number of dedicated tokens, token by token.

use super::value::SpecialValue;

/// The part of a number that one token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenPart {
    Sign {
        negative: bool,
    },
    ExponentSign {
        negative: bool,
    },
    /// The next digit of the exponent.
    ExponentDigit(u8),
    /// The whole exponent.
    Exponent(i32),
    /// The next digit.
    Digit(u8),
    /// A value that is not a number. The token is repeated to the length of a number.
    Special(SpecialValue),
    /// The padding after a number, which always has probability 1.
    Separator,
}

/// The tokens read so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenState {
    /// Number of complete numbers before this one.
    pub(super) output: u16,
    /// Number of tokens of this number.
    pub(super) position: u8,
    pub(super) is_negative: bool,
    pub(super) is_exponent_negative: bool,
    /// Without the sign of [`TokenPart::ExponentSign`].
    pub(super) exponent: i32,
    pub(super) digits: u64,
    pub(super) special: Option<SpecialValue>,
}

impl TokenState {
    /// The state after one more token. Digits are of `base`.
    pub(super) fn with(self, part: TokenPart, base: u8) -> Self {
        let read = Self { position: self.position + 1, ..self };
        match part {
            TokenPart::Sign { negative } => Self { is_negative: negative, ..read },
            TokenPart::ExponentSign { negative } => Self { is_exponent_negative: negative, ..read },
            TokenPart::ExponentDigit(digit) => {
                Self { exponent: self.exponent * i32::from(base) + i32::from(digit), ..read }
            }
            TokenPart::Exponent(exponent) => Self { exponent, ..read },
            TokenPart::Digit(digit) => {
                Self { digits: self.digits * u64::from(base) + u64::from(digit), ..read }
            }
            TokenPart::Special(value) => Self { special: Some(value), ..read },
            TokenPart::Separator => read,
        }
    }

    /// The state at the beginning of the next number.
    pub(super) fn next_output(self) -> Self {
        Self { output: self.output + 1, ..Self::default() }
    }
}

//! Which pieces of a vocabulary are numbers to a loss, and of what value, by rules that read nothing but the piece.
//!
//! Not here: the rules of the paper's plain tokenizers (`float()` without space marks, ten digits), which are
//! `number_value` of the tokenizer. Invariant: values are finite.

use crate::numbers::python::parse_float;

/// Which tokens are numbers to ntloss.
///
/// The original adds `0` to `9` to the tokenizer that it is given if one of them is missing, which changes how text is cut
/// and makes the vocabulary larger than the model's; ours takes the pieces that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NtlossVocabulary {
    /// `digit_level=True`, its default: the ten ASCII digits.
    Digits,
    /// `digit_level=False`: every piece, space mark included, that Python's `float` takes and that is finite.
    Floats,
}

impl NtlossVocabulary {
    /// The value of a piece as the vocabulary writes it, such as `5`, `00` or `.5`. `None` for `▁5`.
    pub fn value(self, piece: &str) -> Option<f64> {
        match self {
            Self::Digits => match piece.as_bytes() {
                [digit @ b'0'..=b'9'] => Some(f64::from(digit - b'0')),
                _ => None,
            },
            Self::Floats => parse_float(piece),
        }
    }
}

/// A number token of the Regression Transformer, such as `_3_2_`: a digit and the power of ten that it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedDigit {
    /// 0 to 9. What Number Token Losses compare (the original's `ignore_order=True`).
    pub digit: u8,
    /// The power of ten.
    pub place: i16,
}

impl PlacedDigit {
    /// Reads a piece; `None` for any that is not `_digit_place_`.
    pub fn parse(piece: &str) -> Option<Self> {
        let (digit, place) = piece.strip_prefix('_')?.strip_suffix('_')?.split_once('_')?;
        let is_plain = digit.len() == 1 && !place.starts_with('+');
        let digit = digit.parse().ok().filter(|_| is_plain)?;
        Some(Self { digit, place: place.parse().ok()? })
    }

    /// Digit times ten to the place: the value by which the CDF distance orders tokens.
    pub fn value(self) -> f64 {
        f64::from(self.digit) * 10.0_f64.powi(self.place.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ntloss_takes_ascii_digits_or_all_finite_floats_without_space_marks() {
        for (piece, digit, float) in [
            ("5", Some(5.0), Some(5.0)),
            ("0", Some(0.0), Some(0.0)),
            ("12", None, Some(12.0)),
            (".5", None, Some(0.5)),
            ("-1", None, Some(-1.0)),
            ("5\n", None, Some(5.0)),
            ("٣", None, Some(3.0)),
            ("▁5", None, None),
            ("Ġ5", None, None),
            ("²", None, None),
            ("inf", None, None),
            ("nan", None, None),
            ("", None, None),
        ] {
            assert_eq!(NtlossVocabulary::Digits.value(piece), digit, "{piece:?}");
            assert_eq!(NtlossVocabulary::Floats.value(piece), float, "{piece:?}");
        }
    }

    #[test]
    fn a_placed_digit_is_a_digit_and_a_power_of_ten_between_underscores() {
        for (piece, want) in [
            ("_3_2_", Some((3, 2))),
            ("_0_0_", Some((0, 0))),
            ("_7_-12_", Some((7, -12))),
            ("_9_19_", Some((9, 19))),
            ("3_2", None),
            ("_12_0_", None),
            ("_-1_0_", None),
            ("_1_+2_", None),
            ("_1__", None),
            ("_1_99999_", None),
            ("_x_1_", None),
            ("", None),
        ] {
            let got = PlacedDigit::parse(piece).map(|digit| (digit.digit, digit.place));
            assert_eq!(got, want, "{piece:?}");
        }
        assert!((PlacedDigit { digit: 3, place: 2 }.value() - 300.0).abs() < 1e-12);
        assert!((PlacedDigit { digit: 7, place: -2 }.value() - 0.07).abs() < 1e-15);
    }
}

//! Number tokens of the Regression Transformer.

/// A number token such as `_3_2_`: a digit and the power of ten that it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedDigit {
    /// The digit, 0 to 9. Number Token Losses compare digits (`ignore_order=True` in the paper's code).
    pub digit: u8,
    /// The power of ten.
    pub place: i16,
}

impl PlacedDigit {
    /// Reads a piece. Returns `None` if it is not of the form `_digit_place_`.
    pub fn parse(piece: &str) -> Option<Self> {
        let (digit, place) = piece.strip_prefix('_')?.strip_suffix('_')?.split_once('_')?;
        if digit.len() != 1 || place.starts_with('+') {
            return None;
        }
        Some(Self { digit: digit.parse().ok()?, place: place.parse().ok()? })
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

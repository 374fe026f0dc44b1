//! The numbers of Regression Transformers: one token per digit, such as `_3_1_` for the 3 of 36.
//!
//! Spells the numbers of a text as tokens, and reads the tokens of an answer as numbers. Reference:
//! `RtTokenizer` of the Number Token Loss paper's code. The digits are identical, including their rounding.

use super::python;

/// Powers of ten that have tokens. Digits beyond them become ordinary pieces.
const PLACES: std::ops::RangeInclusive<i8> = -12..=19;

/// Number of decimals of a number. Further decimals are rounded half up.
const DECIMALS: usize = 12;

/// `10^DECIMALS`. Numbers are added up in units of the last decimal.
const ONE: u128 = 10_u128.pow(DECIMALS as u32);

/// Number of significant digits of Python's `Decimal`, with which the reference implementation adds up
/// digits.
const PRECISION: u32 = 28;

/// Returns the digit and the power of ten of a number token, or `None` for other names.
pub(super) fn place(name: &str) -> Option<(u8, i8)> {
    let (digit, place) = name.strip_prefix('_')?.strip_suffix('_')?.split_once('_')?;
    let digit = digit.parse().ok().filter(|&value: &u8| digit.len() == 1 && value < 10)?;
    Some((digit, place.parse().ok().filter(|place| PLACES.contains(place))?))
}

/// Maximum length of a number, in bytes. It exceeds the number of tokens of any prompt.
const DIGITS_MAX: usize = 4096;

/// Returns the names of a number's tokens. The number consists of digits of any script and at most one point
/// between them. Returns `None` if it is longer than any prompt.
pub(super) fn spelled(number: &str) -> Option<String> {
    if number.len() > DIGITS_MAX {
        return None;
    }
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut digits = digit_values(integer);
    let fraction = digit_values(fraction);
    let kept = fraction.len().min(DECIMALS);
    digits.extend(&fraction[..kept]);
    if fraction.get(DECIMALS).is_some_and(|&next| next >= 5) {
        increment(&mut digits);
    }
    let (integer, fraction) = digits.split_at(digits.len() - kept);
    let leading = integer.iter().take_while(|&&digit| digit == 0).count().min(integer.len() - 1);
    let integer = &integer[leading..];
    let last = fraction.iter().rposition(|&digit| digit != 0).map_or(0, |last| last + 1);
    let places = (0..integer.len() as i64).rev().chain((1..).map(|place: i64| -place));
    let digits = integer.iter().chain(&fraction[..last]);
    let tokens = digits.zip(places).map(|(digit, place)| format!("_{digit}_{place}_"));
    Some(tokens.collect::<Vec<_>>().join(" "))
}

fn digit_values(digits: &str) -> Vec<u8> {
    digits.chars().filter_map(python::digit_value).collect()
}

/// Adds one to the last digit.
fn increment(digits: &mut Vec<u8>) {
    for digit in digits.iter_mut().rev() {
        *digit = (*digit + 1) % 10;
        if *digit != 0 {
            return;
        }
    }
    digits.insert(0, 1);
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AnswerToken {
    /// A digit: its power of ten and its value.
    Place(i8, u8),
    /// The sign of a negative number in old checkpoints.
    Minus,
    Text(Vec<u8>),
    Hidden,
}

/// Returns the text of an answer. Powers of ten that a number omits count as zeros.
pub(super) fn read(tokens: &[AnswerToken]) -> Vec<u8> {
    let mut text = Vec::new();
    let (mut units, mut negative) = (0, false);
    for (index, token) in tokens.iter().enumerate() {
        let &AnswerToken::Place(place, digit) = token else {
            negative = *token == AnswerToken::Minus;
            if let AnswerToken::Text(bytes) = token {
                text.extend(bytes);
            }
            continue;
        };
        units = add(units, digit, place);
        let next = tokens.get(index + 1).and_then(|next| match next {
            AnswerToken::Place(next, _) => Some(*next),
            _ => None,
        });
        if next.is_some_and(|next| next < place) {
            continue;
        }
        text.extend(if negative { " -" } else { " " }.bytes());
        text.extend(printed(units).bytes());
        text.extend(next.map(|_| b' '));
        (units, negative) = (0, false);
    }
    text
}

/// Adds a digit like Python's `Decimal`, which rounds half to even beyond its significant digits.
fn add(units: u128, digit: u8, place: i8) -> u128 {
    let power = u32::from((place + DECIMALS as i8).unsigned_abs());
    let exact = units + u128::from(digit) * 10_u128.pow(power);
    let excess = (exact.checked_ilog10().unwrap_or(0) + 1).saturating_sub(PRECISION);
    let step = 10_u128.pow(excess);
    let whole = exact / step;
    let rest = exact % step * 2;
    let up = rest > step || (rest == step && whole % 2 == 1);
    (whole + u128::from(up)) * step
}

fn printed(units: u128) -> String {
    let whole = format!("{}.{:0DECIMALS$}", units / ONE, units % ONE);
    whole.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_without_leading_or_trailing_zeros_rounded_half_up() {
        for (number, want) in [
            ("36", "_3_1_ _6_0_"),
            ("007", "_7_0_"),
            ("00", "_0_0_"),
            ("12.50", "_1_1_ _2_0_ _5_-1_"),
            ("3.000", "_3_0_"),
            ("99.9999999999995", "_1_2_ _0_1_ _0_0_"),
            ("0.0000000000004", "_0_0_"),
            ("١٢", "_1_1_ _2_0_"),
        ] {
            assert_eq!(spelled(number).as_deref(), Some(want), "{number}");
        }
        let longest = spelled(&"9".repeat(40)).unwrap();
        assert!(longest.starts_with("_9_39_ ") && longest.ends_with(" _9_0_"));
        assert_eq!(spelled(&"9".repeat(4097)), None);
    }

    #[test]
    fn only_the_names_of_number_tokens_have_a_place() {
        for (name, want) in [
            ("_3_1_", Some((3, 1))),
            ("_9_-12_", Some((9, -12))),
            ("_9_19_", Some((9, 19))),
            ("_1_20_", None),
            ("_1_-13_", None),
            ("_12_0_", None),
            ("_a_0_", None),
            ("_1_0_0_", None),
            ("_1_", None),
            ("_", None),
            ("12", None),
        ] {
            assert_eq!(place(name), want, "{name}");
        }
    }

    #[test]
    fn digits_at_descending_places_are_one_number() {
        use AnswerToken::{Hidden, Minus, Place, Text};
        let text = |text: &str| Text(text.as_bytes().to_vec());
        for (tokens, want) in [
            (vec![Place(2, 1), Place(1, 2), Place(0, 5)], " 125"),
            (vec![Place(2, 1), Place(1, 2)], " 120"),
            (vec![Place(2, 1), Place(-2, 5)], " 100.05"),
            (vec![Place(0, 3), Place(0, 3)], " 3  3"),
            (vec![text(" -"), Place(0, 4), Hidden], " - 4"),
            (vec![Minus, Place(0, 4), text(".")], " -4."),
            (vec![Minus, text("x"), Place(0, 4)], "x 4"),
        ] {
            assert_eq!(String::from_utf8(read(&tokens)).unwrap(), want, "{tokens:?}");
        }
    }

    #[test]
    fn sums_keep_28_digits_and_round_half_to_even() {
        assert_eq!(printed(add(add(0, 9, 19), 9, -12)), "90000000000000000000");
        assert_eq!(printed(add(add(0, 1, 16), 5, -12)), "10000000000000000");
        assert_eq!(printed(add(add(add(0, 1, 16), 1, -11), 5, -12)), "10000000000000000.00000000002");
        assert_eq!(printed(add(add(0, 1, 15), 5, -12)), "1000000000000000.000000000005");
    }
}

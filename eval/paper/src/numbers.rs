//! Extracts numbers from texts like the NTL paper's evaluation code:
//!
//! * a number is the last match of `[+-]?\s*\d+(\.\d+)?`: `1,234` is 234, `1e5` is 5, `10 - 3` is -3, `7/3`
//!   is 3, `.5` is 5;
//! * `\d` and `float` accept the decimal digits of any script;
//! * predictions are clipped at ±1e10, labels are not.

use std::sync::LazyLock;

use ntl_core::numbers::python::digit_value;
use regex::Regex;

use crate::regex;

const CLIP: f64 = 1e10;

/// An exception that stops the paper's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PaperError {
    /// `IndexError`.
    #[error("the label holds no number")]
    NoLabel,
    /// `ValueError`.
    #[error("white space other than a blank between a sign and its digits")]
    Unreadable,
}

/// Returns the last number, not clipped.
///
/// # Errors
/// Returns an error if there is white space other than blanks between a sign and its digits.
pub fn last_number(text: &str) -> Result<Option<f64>, PaperError> {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:([+-])(\s*))?([0-9]+(?:\.[0-9]+)?)"));
    let text = with_ascii_digits(text);
    let Some(last) = NUMBER.captures_iter(&text).last() else { return Ok(None) };
    if last.get(2).is_some_and(|space| space.as_str().contains(|c| c != ' ')) {
        return Err(PaperError::Unreadable);
    }
    let value: f64 = last[3].parse().map_err(|_| PaperError::Unreadable)?;
    Ok(Some(if last.get(1).is_some_and(|sign| sign.as_str() == "-") { -value } else { value }))
}

/// Returns the numbers of the prediction and the label. Both are NaN if the prediction has none.
///
/// # Errors
/// Returns an error if the paper's code would stop with an exception.
pub fn number_pair(prediction: &str, label: &str) -> Result<(f64, f64), PaperError> {
    let Some(value) = last_number(prediction)? else { return Ok((f64::NAN, f64::NAN)) };
    let label = last_number(label)?.ok_or(PaperError::NoLabel)?;
    Ok((value.clamp(-CLIP, CLIP), label))
}

/// Counts of number-like runs of digits, points and commas in a text: the trainer's
/// `count_invalid_number_prediction` and `count_no_number_prediction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberCounts {
    /// Number of runs that Python's `float` cannot parse.
    pub malformed_count: usize,
    pub has_none: bool,
}

impl NumberCounts {
    pub fn of(text: &str) -> Self {
        static RUN: LazyLock<Regex> = LazyLock::new(|| regex("[.,0-9]*[0-9]"));
        let text = with_ascii_digits(text);
        let mut counts = Self { malformed_count: 0, has_none: true };
        for run in RUN.find_iter(&text) {
            let is_malformed = run.as_str().contains(',') || run.as_str().matches('.').count() > 1;
            counts.malformed_count += usize::from(is_malformed);
            counts.has_none = false;
        }
        counts
    }
}

fn with_ascii_digits(text: &str) -> String {
    let mut ascii = String::with_capacity(text.len());
    for c in text.chars() {
        ascii.push(digit_value(c).and_then(|value| char::from_digit(value.into(), 10)).unwrap_or(c));
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_all_peculiarities_of_the_paper() {
        for (text, want) in [
            ("-7/3", Some(3.0)),
            ("1,234", Some(234.0)),
            (".5", Some(5.0)),
            ("1e+16", Some(16.0)),
            ("1.2e-05", Some(-5.0)),
            ("12-12 = 0", Some(0.0)),
            ("3 -- 4", Some(-4.0)),
            ("- 4", Some(-4.0)),
            ("x - 3.5.2", Some(2.0)),
            ("\u{2212}4", Some(4.0)),
            ("٣", Some(3.0)),
            ("１２", Some(12.0)),
            ("𝟗", Some(9.0)),
            ("½", None),
            ("", None),
        ] {
            assert_eq!(last_number(text).unwrap(), want, "{text:?}");
        }
        assert_eq!(last_number("-\n5"), Err(PaperError::Unreadable));
        assert_eq!(number_pair("5", "none"), Err(PaperError::NoLabel));
        assert_eq!(number_pair("99999999999", "99999999999").unwrap(), (1e10, 99_999_999_999.0));
    }

    #[test]
    fn numbers_that_float_cannot_read_are_counted() {
        for (text, want) in [
            ("1,234", (1, false)),
            ("1.2.3 and 5", (1, false)),
            ("3,.", (0, false)),
            (",3", (1, false)),
            ("no", (0, true)),
            ("., ,", (0, true)),
            ("1e5 -7", (0, false)),
        ] {
            let NumberCounts { malformed_count, has_none } = NumberCounts::of(text);
            assert_eq!((malformed_count, has_none), want, "{text:?}");
        }
    }
}

//! The figures of the NTL paper's evaluation code, to the bit where it is deterministic, peculiarities included.
//!
//! In: predicted and labelled texts, in file order. Out: the figures its trainer logs. Kept apart from every other
//! metric, so that nobody mends it by accident. What is odd about it, and is kept:
//!
//! * a number is the last match of `[+-]?\s*\d+(\.\d+)?`: `1,234` is 234, `1e5` is 5, `10 - 3` is -3, `7/3` is 3, `.5` is 5;
//! * predictions are cut at ±1e10, labels are not;
//! * rows whose prediction has no number drop out of all errors and cost nothing there;
//! * "accurate" is `numpy.isclose`: within 1e-8 + 1e-5 of the label;
//! * R² over labels that do not vary is minus infinity, or NaN, and a correlation of fewer than two rows is 0.

use super::numpy;
use crate::stats::signed_log;

/// Predictions beyond this are cut.
const CLIP: f64 = 1e10;

/// Why the paper's code would have stopped.
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

/// The last number by the paper's rule, not cut.
///
/// # Errors
/// A sign and its digits have other white space than blanks between them, which the paper's code cannot read.
pub fn last_number(text: &str) -> Result<Option<f64>, PaperError> {
    let chars: Vec<char> = text.chars().collect();
    let (mut last, mut from) = (None, 0);
    while let Some(start) = (from..chars.len()).find(|&at| digit(&chars, at).is_some()) {
        let mut end = digits_end(&chars, start);
        if chars.get(end) == Some(&'.') && digits_end(&chars, end + 1) > end + 1 {
            end = digits_end(&chars, end + 1);
        }
        last = Some((sign_start(&chars, from, start), start, end));
        from = end;
    }
    let Some((sign, start, end)) = last else { return Ok(None) };
    if chars[sign..start].iter().any(|c| c.is_whitespace() && *c != ' ') {
        return Err(PaperError::Unreadable);
    }
    let digits: String = (start..end).map(|at| digit(&chars, at).unwrap_or('.')).collect();
    let value: f64 = digits.parse().map_err(|_| PaperError::Unreadable)?;
    Ok(Some(if chars[sign] == '-' { -value } else { value }))
}

/// The prediction's number and the label's; both NaN where the prediction has none.
///
/// # Errors
/// Where the paper's code stops with an error of its own.
pub fn number_pair(prediction: &str, label: &str) -> Result<(f64, f64), PaperError> {
    let Some(value) = last_number(prediction)? else { return Ok((f64::NAN, f64::NAN)) };
    let label = last_number(label)?.ok_or(PaperError::NoLabel)?;
    Ok((value.clamp(-CLIP, CLIP), label))
}

/// Where the sign in front of the digits at `start` is, or `start`.
fn sign_start(chars: &[char], from: usize, start: usize) -> usize {
    let before = chars[from..start].iter().rposition(|c| !c.is_whitespace()).map(|at| from + at);
    before.filter(|&at| matches!(chars[at], '+' | '-')).unwrap_or(start)
}

fn digits_end(chars: &[char], start: usize) -> usize {
    (start..chars.len()).find(|&at| digit(chars, at).is_none()).unwrap_or(chars.len())
}

/// The ASCII form of a decimal digit of any script, as Python's `\d` and `float` take them.
fn digit(chars: &[char], at: usize) -> Option<char> {
    let c = *chars.get(at)?;
    if c.is_ascii() {
        return c.is_ascii_digit().then_some(c);
    }
    let zero = ZEROS.iter().rev().find(|&&zero| zero <= u32::from(c))?;
    char::from_digit(u32::from(c) - zero, 10)
}

/// The zeros of the scripts that have decimal digits (Unicode 14, general category Nd), each followed by its nine
/// others.
const ZEROS: [u32; 65] = [
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50,
    0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066, 0x110f0,
    0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50,
    0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140,
    0x1e2f0, 0x1e950, 0x1fbf0,
];

/// How many numbers in the text `float` cannot read, and whether there is none at all: the trainer's
/// `count_invalid_number_prediction` and `count_no_number_prediction`.
pub fn malformed_count(text: &str) -> (usize, bool) {
    let chars: Vec<char> = text.chars().collect();
    let part = |at: usize| matches!(chars.get(at), Some(',' | '.')) || digit(&chars, at).is_some();
    let (mut invalid, mut none, mut at) = (0, true, 0);
    while at < chars.len() {
        let end = (at..chars.len()).find(|&at| !part(at)).unwrap_or(chars.len());
        if let Some(last) = (at..end).rev().find(|&at| digit(&chars, at).is_some()) {
            none = false;
            let points = chars[at..last].iter().filter(|c| **c == '.').count();
            invalid += usize::from(points > 1 || chars[at..last].contains(&','));
        }
        at = end.max(at) + 1;
    }
    (invalid, none)
}

/// What the trainer calls `MAE`, `MSE`, and so on. NaN and infinities are possible.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// `MAE`.
    pub mae: f64,
    /// `MSE`.
    pub mse: f64,
    /// `R2`.
    pub r2: f64,
    /// `number_accuracy`, over all rows.
    pub accuracy: f64,
    /// `count_not_produced_valid_results`.
    pub unparsed: usize,
    /// `median_absolute_error`.
    pub median_ae: f64,
    /// `log_mae`.
    pub log_mae: f64,
    /// `log_r2`.
    pub log_r2: f64,
    /// `pearson`.
    pub pearson: f64,
    /// `spearman`.
    pub spearman: f64,
}

impl Figures {
    /// Of pairs as [`number_pair`] reads them.
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let valid: Vec<(f64, f64)> = pairs.iter().copied().filter(|(value, _)| !value.is_nan()).collect();
        let errors: Vec<f64> = valid.iter().map(|(value, label)| (value - label).abs()).collect();
        let logs: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (signed_log(*a), signed_log(*b))).collect();
        let log_errors = logs.iter().filter(|(value, _)| !value.is_nan()).map(|(a, b)| (a - b).abs());
        let close = pairs.iter().filter(|(a, b)| (a - b).abs() <= 1e-8 + 1e-5 * b.abs()).count();
        let correlated = valid.len() >= 2;
        Self {
            mae: numpy::mean(&errors),
            mse: numpy::mean(&errors.iter().map(|error| error * error).collect::<Vec<_>>()),
            r2: r2(pairs),
            accuracy: close as f64 / pairs.len() as f64,
            unparsed: pairs.len() - valid.len(),
            median_ae: numpy::median(&errors),
            log_mae: numpy::mean(&log_errors.collect::<Vec<_>>()),
            log_r2: r2(&logs),
            pearson: if correlated { numpy::pearson(&valid) } else { 0.0 },
            spearman: if correlated { numpy::spearman(&valid) } else { 0.0 },
        }
    }
}

fn r2(pairs: &[(f64, f64)]) -> f64 {
    let centre = numpy::nan_mean(&pairs.iter().map(|(_, label)| *label).collect::<Vec<_>>());
    let left: Vec<f64> = pairs.iter().map(|(value, label)| (value - label) * (value - label)).collect();
    let total: Vec<f64> = pairs.iter().map(|(_, label)| (label - centre) * (label - centre)).collect();
    1.0 - numpy::nan_sum(&left) / numpy::nan_sum(&total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_all_peculiarities() {
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
            assert_eq!(malformed_count(text), want, "{text:?}");
        }
    }
}

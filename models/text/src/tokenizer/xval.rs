//! xVal's numbers: tokens `[NUM]`, each with a value.
//!
//! Reference: `XvalTokenizer` of the Number Token Loss paper's code. Numbers have no sign, and a comma
//! between two numbers is lost.

use ntl_core::{Prompt, Token};

use super::{EncodeError, python};

pub(super) const NUMBER_TOKEN: &str = "[NUM]";

/// The placeholder that the reference implementation inserts first and then replaces with `[NUM]`.
const MARK: char = '¬';

/// A text with `[NUM]` in place of its numbers, and their values in order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ExtractedNumbers {
    text: String,
    numbers: Vec<f32>,
}

impl ExtractedNumbers {
    /// `replace` calls its argument for each number in the text and replaces the number with the result.
    ///
    /// # Errors
    /// If the text itself contains a placeholder, or a number beyond single precision.
    pub(super) fn new(
        text: &str,
        replace: impl FnOnce(&mut dyn FnMut(&str) -> String) -> String,
    ) -> Result<Self, EncodeError> {
        if let Some(mark) = [NUMBER_TOKEN, "¬"].into_iter().find(|mark| text.contains(mark)) {
            return Err(EncodeError::NumberMark(mark));
        }
        let mut numbers = Vec::new();
        let mut too_large = None;
        let marked = replace(&mut |number| {
            let value = python::parse_float(number).map(|value| value as f32);
            match value.filter(|value| value.is_finite()) {
                Some(value) => numbers.push(value),
                None => too_large = Some(EncodeError::too_large(number)),
            }
            MARK.to_string()
        });
        too_large.map_or(Ok(()), Err)?;
        // Each twice, because adjacent matches share a placeholder.
        let joined =
            ["¬, ¬", "¬, ¬", "¬,¬", "¬,¬"].iter().fold(marked, |text, comma| text.replace(comma, "¬¬"));
        Ok(Self { text: joined.replace(MARK, NUMBER_TOKEN), numbers })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Converts ids to tokens and gives each `[NUM]` its value.
    pub(super) fn tokens(self, ids: &[u32], number_id: u32) -> Prompt {
        let mut numbers = self.numbers.into_iter();
        ids.iter()
            .map(|&id| Token { id, value: if id == number_id { numbers.next() } else { None } })
            .collect()
    }
}

/// Formats a number like NumPy in single precision: the shortest digits that parse to the same number, with
/// an exponent if its magnitude is at least 1e16 or below 1e-4.
pub(super) fn printed(number: f32) -> String {
    if !number.is_finite() {
        return number.to_string().to_lowercase();
    }
    let size = f64::from(number.abs());
    if number == 0.0 || (1e-4..1e16).contains(&size) {
        let text = number.to_string();
        return if text.contains('.') { text } else { text + ".0" };
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |exponent| ("-", exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extracts each digit as a number.
    fn extract(text: &str) -> Result<ExtractedNumbers, EncodeError> {
        ExtractedNumbers::new(text, |number| {
            let parts = text.chars().map(|c| {
                let part = c.to_string();
                if c.is_ascii_digit() { number(&part) } else { part }
            });
            parts.collect()
        })
    }

    #[test]
    fn numbers_are_replaced_by_marks_and_commas_between_them_are_lost() {
        for (text, want, numbers) in [
            ("1 + 2", "[NUM] + [NUM]", &[1.0, 2.0][..]),
            ("1, 2, 3, 4", "[NUM][NUM][NUM][NUM]", &[1.0, 2.0, 3.0, 4.0]),
            ("1,2,3", "[NUM][NUM][NUM]", &[1.0, 2.0, 3.0]),
            ("1 , 2", "[NUM] , [NUM]", &[1.0, 2.0]),
            ("none", "none", &[]),
        ] {
            let extracted = extract(text).unwrap();
            assert_eq!((extracted.text(), extracted.numbers.as_slice()), (want, numbers), "{text}");
        }
        let prompt = extract("7 x 8").unwrap().tokens(&[9, 4, 9, 1], 9);
        let values: Vec<Option<f32>> = prompt.tokens.iter().map(|token| token.value).collect();
        assert_eq!(values, [Some(7.0), None, Some(8.0), None]);
    }

    #[test]
    fn placeholders_and_numbers_beyond_single_precision_are_rejected() {
        for (text, want) in [("1 ¬ 2", "`¬`"), ("a [NUM]", "`[NUM]`")] {
            assert!(extract(text).unwrap_err().to_string().contains(want));
        }
        let large = "9".repeat(39);
        let error = ExtractedNumbers::new("x", |number| number(&large)).unwrap_err();
        assert_eq!(error.to_string(), format!("the number {large} is too large for this model"));
        let error = ExtractedNumbers::new("x", |number| number(&"9".repeat(500))).unwrap_err();
        assert_eq!(error.to_string(), format!("the number {}… is too large for this model", "9".repeat(40)));
    }

    #[test]
    fn numbers_are_formatted_like_numpy() {
        for (number, want) in [
            (344.933_87, "344.93387"),
            (478.0, "478.0"),
            (-0.5, "-0.5"),
            (0.0, "0.0"),
            (59_882_320.0, "59882320.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.234_567_9e23, "1.2345679e+23"),
            (1e-4, "1e-04"),
            (0.001, "0.001"),
            (-1.5e-5, "-1.5e-05"),
            (f32::NAN, "nan"),
            (f32::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(printed(number), want);
        }
    }
}

//! Labels as the paper's code sees them: their texts, and the length limits that follow from their tokens.

use std::sync::LazyLock;

use regex::Regex;

use crate::{BATCH, regex};

/// The paper's `max_length` exceeds the longest label by this and counts the token that decoding starts from.
const LENGTH_MARGIN: u64 = 10;

/// Returns the text of a label. `decoded` is the text of its token ids, and `written` the answer in the data.
/// Token ids of xVal checkpoints do not contain the numbers. The numbers of the answer replace the number
/// tokens, in the format of the paper's tokenizer.
pub(crate) fn text(decoded: String, written: &str) -> String {
    let is_digit = u8::is_ascii_digit;
    if decoded.as_bytes().iter().any(is_digit) || !written.as_bytes().iter().any(is_digit) {
        decoded
    } else {
        with_numbers(&decoded, written).unwrap_or_else(|| written.to_owned())
    }
}

/// Replaces the number tokens of `decoded` with the numbers of `written`. `None` unless there are equally
/// many.
fn with_numbers(decoded: &str, written: &str) -> Option<String> {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"[0-9]+(\.[0-9]+)?"));
    let mut numbers = NUMBER.find_iter(written);
    let mut parts = decoded.split("[NUM]");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let number: f32 = numbers.next()?.as_str().parse().ok()?;
        text.push_str(&printed(number));
        text.push_str(part);
    }
    numbers.next().is_none().then_some(text)
}

/// Formats a number as NumPy prints it in single precision: the shortest digits that parse to the same
/// number, with an exponent from 1e16 and below 1e-4.
fn printed(number: f32) -> String {
    if number == 0.0 || (1e-4..1e16).contains(&f64::from(number)) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text.replace('e', "e+"),
    }
}

/// Returns the length limit of each answer from the token ids of all labels. Every batch has the limit of its
/// longest label. The limit has room for an end of sequence, even if the labels do not contain it
/// (`has_end`).
pub(crate) fn answer_tokens_max(labels: &[Vec<u32>], has_end: bool) -> Vec<u64> {
    let mut limits = Vec::with_capacity(labels.len());
    for batch in labels.chunks(BATCH) {
        let longest = batch.iter().map(Vec::len).max().unwrap_or(0) as u64 + u64::from(!has_end);
        limits.extend(vec![longest + LENGTH_MARGIN - 1; batch.len()]);
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_whose_tokens_have_no_numbers_gets_them_in_the_paper_s_format() {
        let text = |decoded: &str, written| text(decoded.to_owned(), written);
        assert_eq!(text("- [NUM]", "-647"), "- 647.0");
        assert_eq!(text("- [NUM]/ [NUM]", "-7/2"), "- 7.0/ 2.0");
        assert_eq!(text("[NUM]", "123456789"), "123456790.0");
        assert_eq!(text("[NUM]", "0.00001"), "1e-05");
        assert_eq!(text("[NUM]", "100000000000000000000"), "1e+20");
        // There are fewer tokens than numbers, so the written text is the best label available.
        assert_eq!(text("- [NUM]", "-7/2"), "-7/2");
        assert_eq!(text("- 142", "-142"), "- 142");
        assert_eq!(text("none", "none"), "none");
    }
}

//! Numbers in ordinary text, as a person reads them.
//!
//! In: any text. Out: the last number in it as an `f64`, which is finite; a number that overflows is ignored. Not here: the
//! rules of the NTL paper's code, which splits `1,234` and `1e3` apart.
//!
//! What counts as a number:
//!
//! * digits, with an optional point and decimals: `18`, `3.50`, `.5`; a point without a digit after it ends
//!   the sentence, not the number;
//! * thousands separators, where every group after a comma has exactly three digits: `1,234.50`, but `1,23` is
//!   `1` and then `23`;
//! * an exponent: `1e3`, `2.5E-4`;
//! * a sign directly in front (`+`, `-` or U+2212), unless it follows a digit, a letter, a point, a closing
//!   bracket or another minus, where it is a subtraction, a hyphen, a range or a dash: `10-3` ends in 3, `= -3`
//!   in -3;
//! * a sign and spaces in front, where nothing, a bracket, an operator, a colon or a currency sign precedes:
//!   `- 142` is -142, `x = - 4` is -4, but `10 - 3` ends in 3 and `cost - 5` in 5;
//! * a currency sign between a sign and its digits: `-$5`.
//!
//! Digits are the ten of ASCII. A fraction `7/3` is two numbers and ends in 3.

/// The last number in `text`; `None` where there is none.
pub fn last_number(text: &str) -> Option<f64> {
    let mut found = None;
    let mut at = 0;
    while let Some(start) = number_start(text, at) {
        let (value, end) = read_unsigned(text, start);
        if let Some(value) = value {
            found = Some((start, value));
        }
        at = end;
    }
    let (start, value) = found?;
    // Adding 0 turns -0 into 0.
    Some(if is_negative(&text[..start]) { -value + 0.0 } else { value })
}

/// Where the next number begins, without its sign: a digit, or a point right before one that ends no word.
fn number_start(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let digit = (from..bytes.len()).find(|&index| bytes[index].is_ascii_digit())?;
    let point = digit.checked_sub(1).filter(|&index| index >= from && bytes[index] == b'.');
    let ends_word = |index| text[..index].ends_with(|c: char| c.is_alphanumeric() || c == '.');
    Some(point.filter(|&index| !ends_word(index)).unwrap_or(digit))
}

/// Reads digits, separators, decimals and exponent from `start`; returns the value, `None` where it overflows,
/// and the index after it.
fn read_unsigned(text: &str, start: usize) -> (Option<f64>, usize) {
    let bytes = text.as_bytes();
    let mut end = digits_end(bytes, start);
    if (1..=3).contains(&(end - start)) {
        end = groups_end(bytes, end);
    }
    if bytes.get(end) == Some(&b'.') && digits_end(bytes, end + 1) > end + 1 {
        end = digits_end(bytes, end + 1);
    }
    end = exponent_end(bytes, end);
    let digits: String = text[start..end].chars().filter(|&c| c != ',').collect();
    (digits.parse().ok().filter(|value: &f64| value.is_finite()), end)
}

fn digits_end(bytes: &[u8], start: usize) -> usize {
    start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Skips `,ddd` groups, all or nothing: `1,234,56` has no thousands separators.
fn groups_end(bytes: &[u8], start: usize) -> usize {
    let mut end = start;
    while bytes.get(end) == Some(&b',') && digits_end(bytes, end + 1) > end + 1 {
        let group_end = digits_end(bytes, end + 1);
        if group_end - end != 4 {
            return start;
        }
        end = group_end;
    }
    end
}

/// Skips `e`, an optional sign and digits, unless a letter follows (`5e3x`).
fn exponent_end(bytes: &[u8], start: usize) -> usize {
    if !matches!(bytes.get(start), Some(b'e' | b'E')) {
        return start;
    }
    let sign = usize::from(matches!(bytes.get(start + 1), Some(b'+' | b'-')));
    let digits = start + 1 + sign;
    let end = digits_end(bytes, digits.min(bytes.len()));
    let word = bytes.get(end).is_some_and(u8::is_ascii_alphabetic);
    if end > digits && !word { end } else { start }
}

/// Whether the text before a number ends in a minus that belongs to it.
fn is_negative(before: &str) -> bool {
    let unspaced = before.trim_end_matches(char::is_whitespace);
    let spaced = unspaced.len() < before.len();
    let unsigned =
        unspaced.strip_suffix(currency).map_or(unspaced, |rest| rest.trim_end_matches(char::is_whitespace));
    let Some(rest) = unsigned.strip_suffix(['-', '\u{2212}']) else { return false };
    if spaced {
        let rest = rest.trim_end_matches(char::is_whitespace);
        rest.is_empty() || rest.ends_with(awaits_operand)
    } else {
        !rest.ends_with(ends_operand)
    }
}

/// After these a minus subtracts, joins words or spans a range.
fn ends_operand(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | ')' | ']' | '}' | '%' | '-' | '\u{2212}')
}

/// After these a minus with a space must be a sign.
fn awaits_operand(c: char) -> bool {
    matches!(c, '(' | '[' | '{' | '=' | ':' | '+' | '*' | '/' | '<' | '>' | '≈' | '#') || currency(c)
}

fn currency(c: char) -> bool {
    matches!(c, '$' | '€' | '£' | '¥')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(table: &[(&str, Option<f64>)]) {
        for (text, want) in table {
            assert_eq!(last_number(text).map(f64::to_bits), want.map(f64::to_bits), "input {text:?}");
        }
    }

    #[test]
    fn last_number_is_read_as_a_person_would() {
        check(&[
            ("She has 18 eggs.", Some(18.0)),
            ("#### 1,234.50", Some(1234.5)),
            ("it fell to -3", Some(-3.0)),
            ("from 7 to 9", Some(9.0)),
            ("1e3", Some(1000.0)),
            ("none left", None),
            ("", None),
            ("the answer is 42.", Some(42.0)),
            ("0.1 or .5", Some(0.5)),
            ("rises by +7%", Some(7.0)),
            ("007", Some(7.0)),
            ("-0", Some(0.0)),
            ("7/3", Some(3.0)),
        ]);
    }

    #[test]
    fn a_minus_is_a_sign_only_where_nothing_stands_to_subtract_from() {
        check(&[
            ("10-3", Some(3.0)),
            ("10 - 3", Some(3.0)),
            ("10 -3", Some(-3.0)),
            ("- 142", Some(-142.0)),
            ("\u{2212}4", Some(-4.0)),
            ("x = - 4", Some(-4.0)),
            ("answer: - 4", Some(-4.0)),
            ("cost - 5", Some(5.0)),
            ("B-52", Some(52.0)),
            ("(2)-3", Some(3.0)),
            ("(-3)", Some(-3.0)),
            ("pages 3\u{2212}4", Some(4.0)),
            ("-$5", Some(-5.0)),
            ("-.5", Some(-0.5)),
            ("3 - -4", Some(-4.0)),
            ("--4", Some(4.0)),
        ]);
    }

    #[test]
    fn commas_separate_thousands_only_in_groups_of_three() {
        check(&[
            ("1,234", Some(1234.0)),
            ("12,345,678", Some(12_345_678.0)),
            ("1,23", Some(23.0)),
            ("1,234,56", Some(56.0)),
            ("1234,567", Some(567.0)),
            ("3, 4", Some(4.0)),
            ("1,", Some(1.0)),
            ("1,234,", Some(1234.0)),
        ]);
    }

    #[test]
    fn points_and_exponents_need_digits_behind_them() {
        check(&[
            ("2.5E-4", Some(2.5e-4)),
            ("1e", Some(1.0)),
            ("1e+", Some(1.0)),
            ("5e3x", Some(3.0)),
            ("3 eggs", Some(3.0)),
            ("3.5.2", Some(2.0)),
            ("end.5", Some(5.0)),
            ("...5", Some(5.0)),
            ("v1.", Some(1.0)),
        ]);
    }

    #[test]
    fn what_overflows_is_no_number() {
        check(&[("1e999", None), ("7 then 1e999", Some(7.0)), ("1e-999", Some(0.0)), ("NaN inf", None)]);
    }

    #[test]
    fn any_text_is_read_without_a_panic() {
        let pieces = ["-", "1", "23", ",", ".", "e", "+", " ", "\u{2212}", "$", "é", "٣", "("];
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
            }
            assert!(last_number(&text).is_none_or(f64::is_finite), "input {text:?}");
        }
    }
}

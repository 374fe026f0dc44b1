//! Numbers in ordinary text, as a person reads them: the one definition for answers, labels and ratings.
//!
//! In: any text. Out: a finite `f64`; a number that overflows is ignored. The NTL paper's code follows other
//! rules: it splits `1,234` and `1e3`. The digits that a model writes inside a number tree are defined by
//! [`super::NumberState`].
//!
//! A number consists of:
//!
//! * decimal digits of any script (`18`, `１８`, `١٨`), with an optional point and decimals: `3.50`, `.5`. A
//!   point without a digit after it ends the sentence, not the number;
//! * separators, commas or underscores, either of thousands (`1,234.50`, `1_000`) or of lakhs and crores
//!   (`1,00,000`). `1,23` is `1` and then `23`;
//! * an exponent: `1e3`, `2.5E-4`;
//! * in place of decimals and exponent, a fraction in one character: `½`, `1½`, `1 ½`;
//! * a sign directly before the number (`+`, `-` or U+2212), unless it follows a digit, a letter, a point, a
//!   closing bracket or another minus, where it is a subtraction, a hyphen, a range or a dash: `10-3` ends in
//!   3, `= -3` in -3;
//! * a sign and spaces before the number, if nothing, a bracket, an operator, a colon or a currency symbol
//!   precedes: `- 142` is -142, `x = - 4` is -4, but `10 - 3` ends in 3 and `cost - 5` in 5;
//! * a currency symbol of any kind between the sign and the number: `-$5`, `-₹5`.
//!
//! Full-width forms and the Arabic point and thousands separator count as their ASCII equivalents. `7/3` in a
//! longer text is two numbers and ends in 3; [`fraction`] reads it if it is the whole text.

use std::borrow::Cow;

use super::python::digit_value;

/// Returns the last number in `text`, or `None` if there is none.
pub fn last_number(text: &str) -> Option<f64> {
    let text = &*in_ascii(text);
    let (start, value) = unsigned_numbers(text).last()?;
    Some(signed(value, &text[..start]))
}

/// Returns the first number in `text`, or `None` if there is none.
pub fn first_number(text: &str) -> Option<f64> {
    let text = &*in_ascii(text);
    let (start, value) = unsigned_numbers(text).next()?;
    Some(signed(value, &text[..start]))
}

/// Returns the numbers of a text without their signs, and where they start.
fn unsigned_numbers(text: &str) -> impl Iterator<Item = (usize, f64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(start) = number_start(text, at) {
            let (value, end) = read_unsigned(text, start);
            at = end;
            if let Some(value) = value {
                return Some((start, value));
            }
        }
        None
    })
}

/// Returns the value of a text that is a number and nothing else: spaces around it, a currency symbol before
/// it and a point after it are allowed. [`last_number`] reads the same value.
pub fn whole_number(text: &str) -> Option<f64> {
    let text = &*in_ascii(text.trim());
    let start = number_start(text, 0)?;
    let (value, end) = read_unsigned(text, start);
    let before = &text[..start];
    let after = &text[end..];
    let prefix: String = before.chars().filter(|c| !c.is_whitespace()).collect();
    match (&*prefix, after) {
        ("" | "+" | "-" | "$" | "+$" | "-$" | "$+" | "$-", "" | ".") => Some(signed(value?, before)),
        _ => None,
    }
}

/// Returns the value of a text that is a fraction of two integers and nothing else, such as `-7/3`.
pub fn fraction(text: &str) -> Option<f64> {
    let text = in_ascii(text.trim());
    let (above, below) = text.split_once('/')?;
    if !is_integer(above.strip_prefix('-').unwrap_or(above)) || !is_integer(below) {
        return None;
    }
    let value = above.parse::<f64>().ok()? / below.parse::<f64>().ok()?;
    value.is_finite().then_some(value)
}

fn is_integer(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the number with a decimal point if `text` is a number only with a decimal comma: `1.5` for `1,5`,
/// `1234.5` for `1.234,5`.
pub fn with_decimal_point(text: &str) -> Option<String> {
    let text = in_ascii(text.trim());
    let (_, decimals) = text.split_once(',')?;
    let is_comma = !decimals.is_empty() && decimals.bytes().all(|byte| byte.is_ascii_digit());
    let swapped: String = text
        .chars()
        .map(|c| match c {
            ',' => '.',
            '.' => ',',
            other => other,
        })
        .collect();
    let is_number = is_comma && whole_number(&text).is_none() && whole_number(&swapped).is_some();
    is_number.then(|| swapped.replace(',', ""))
}

/// Replaces the digits, points, separators, signs, brackets and currency symbols of other scripts by ASCII
/// ones. Every currency symbol becomes `$`.
fn in_ascii(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(ascii).collect())
}

fn ascii(c: char) -> char {
    if let Some(digit) = digit_value(c) {
        return char::from(b'0' + digit);
    }
    match c {
        '\u{2212}' => '-',
        // The fraction slash and the division slash.
        '\u{2044}' | '\u{2215}' => '/',
        // The Arabic decimal separator and thousands separator.
        '\u{66B}' => '.',
        '\u{66C}' => ',',
        // The full-width forms are in the order of ASCII.
        '\u{FF01}'..='\u{FF5E}' => char::from_u32(u32::from(c) - 0xFF01 + 0x21).unwrap_or(c),
        c if is_currency(c) => '$',
        other => other,
    }
}

/// Returns whether the character is a currency symbol (general category Sc).
fn is_currency(c: char) -> bool {
    matches!(c,
        '$' | '\u{A2}'..='\u{A5}' | '\u{58F}' | '\u{60B}' | '\u{7FE}' | '\u{7FF}' | '\u{9F2}' | '\u{9F3}' | '\u{9FB}'
        | '\u{AF1}' | '\u{BF9}' | '\u{E3F}' | '\u{17DB}' | '\u{20A0}'..='\u{20CF}' | '\u{A838}' | '\u{FDFC}' | '\u{FE69}'
        | '\u{FF04}' | '\u{FFE0}' | '\u{FFE1}' | '\u{FFE5}' | '\u{FFE6}' | '\u{11FDD}'..='\u{11FE0}' | '\u{1E2FF}'
        | '\u{1ECB0}')
}

/// The fractions in one character, with numerator and denominator.
const VULGAR_FRACTIONS: [(char, f64, f64); 19] = [
    ('¼', 1.0, 4.0),
    ('½', 1.0, 2.0),
    ('¾', 3.0, 4.0),
    ('⅐', 1.0, 7.0),
    ('⅑', 1.0, 9.0),
    ('⅒', 1.0, 10.0),
    ('⅓', 1.0, 3.0),
    ('⅔', 2.0, 3.0),
    ('⅕', 1.0, 5.0),
    ('⅖', 2.0, 5.0),
    ('⅗', 3.0, 5.0),
    ('⅘', 4.0, 5.0),
    ('⅙', 1.0, 6.0),
    ('⅚', 5.0, 6.0),
    ('⅛', 1.0, 8.0),
    ('⅜', 3.0, 8.0),
    ('⅝', 5.0, 8.0),
    ('⅞', 7.0, 8.0),
    ('↉', 0.0, 3.0),
];

fn vulgar_fraction(character: char) -> Option<(f64, f64)> {
    let found = VULGAR_FRACTIONS.iter().find(|(known, ..)| *known == character)?;
    Some((found.1, found.2))
}

/// Finds the start of the next number without its sign: a digit, a fraction in one character, or a point
/// right before a digit that does not end a word.
fn number_start(text: &str, from: usize) -> Option<usize> {
    let start = from + text[from..].find(|c: char| c.is_ascii_digit() || vulgar_fraction(c).is_some())?;
    if !text[start..].starts_with(|c: char| c.is_ascii_digit()) {
        return Some(start);
    }
    match text[from..start].strip_suffix('.') {
        Some(before_point) => {
            let point = from + before_point.len();
            let ends_word = text[..point].ends_with(|c: char| c.is_alphanumeric() || c == '.');
            Some(if ends_word { start } else { point })
        }
        None => Some(start),
    }
}

/// Reads the number at `start`. Returns the value, or `None` if it overflows, and the index after it.
fn read_unsigned(text: &str, start: usize) -> (Option<f64>, usize) {
    let bytes = text.as_bytes();
    let whole_end = groups_end(bytes, start);
    let whole: String = text[start..whole_end].chars().filter(char::is_ascii_digit).collect();
    if let Some(((above, below), end)) = fraction_after(text, start, whole_end) {
        let whole = if whole.is_empty() { Ok(0.0) } else { whole.parse::<f64>() };
        let value = whole.ok().map(|whole| (whole * below + above) / below);
        return (value.filter(|value| value.is_finite()), end);
    }
    let mut end = whole_end;
    if bytes.get(end) == Some(&b'.') && digits_end(bytes, end + 1) > end + 1 {
        end = digits_end(bytes, end + 1);
    }
    end = exponent_end(bytes, end);
    let value = format!("{whole}{}", &text[whole_end..end]).parse();
    (value.ok().filter(|value: &f64| value.is_finite()), end)
}

fn digits_end(bytes: &[u8], start: usize) -> usize {
    start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Skips digits and the separators between them, all separators or none: `1,234,56` is not grouped.
fn groups_end(bytes: &[u8], start: usize) -> usize {
    let first_end = digits_end(bytes, start);
    let Some(&separator) = bytes.get(first_end).filter(|byte| matches!(byte, b',' | b'_')) else {
        return first_end;
    };
    let mut sizes = Vec::new();
    let mut end = first_end;
    while bytes.get(end) == Some(&separator) && digits_end(bytes, end + 1) > end + 1 {
        let group_end = digits_end(bytes, end + 1);
        sizes.push(group_end - end - 1);
        end = group_end;
    }
    let Some((3, middle)) = sizes.split_last() else { return first_end };
    let all_have = |digits| middle.iter().all(|size| *size == digits);
    let is_grouped = match first_end - start {
        1 | 2 => all_have(3) || all_have(2),
        3 => all_have(3),
        _ => false,
    };
    if is_grouped { end } else { first_end }
}

/// Returns the numerator and denominator of the one-character fraction at `end`, with the index after it.
/// After an integer, which starts at `start`, one space may precede it.
fn fraction_after(text: &str, start: usize, end: usize) -> Option<((f64, f64), usize)> {
    let mut rest = text[end..].chars();
    let mut character = rest.next()?;
    if end > start && matches!(character, ' ' | '\u{A0}' | '\u{2009}' | '\u{202F}') {
        character = rest.next()?;
    }
    Some((vulgar_fraction(character)?, text.len() - rest.as_str().len()))
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

/// Applies the sign at the end of the text before a number.
fn signed(value: f64, before: &str) -> f64 {
    // Adding 0 turns -0 into 0.
    if is_negative(before) { -value + 0.0 } else { value }
}

/// Returns whether the text before a number ends in a minus that belongs to the number.
fn is_negative(before: &str) -> bool {
    let unspaced = before.trim_end_matches(char::is_whitespace);
    let spaced = unspaced.len() < before.len();
    let unsigned =
        unspaced.strip_suffix('$').map_or(unspaced, |rest| rest.trim_end_matches(char::is_whitespace));
    let Some(rest) = unsigned.strip_suffix('-') else { return false };
    if spaced {
        let rest = rest.trim_end_matches(char::is_whitespace);
        rest.is_empty() || rest.ends_with(awaits_operand)
    } else {
        !rest.ends_with(ends_operand)
    }
}

/// Returns whether a minus right after the character subtracts, joins words or spans a range.
fn ends_operand(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | ')' | ']' | '}' | '%' | '-')
}

/// Returns whether a minus after the character is a sign even if a space follows the minus.
fn awaits_operand(c: char) -> bool {
    matches!(c, '(' | '[' | '{' | '=' | ':' | '+' | '*' | '/' | '<' | '>' | '≈' | '#' | '$')
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;

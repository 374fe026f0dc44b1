//! What number an answer states, by the rules of different harnesses.
//!
//! [`value`] is ours. [`LmEvalFilter`] has the two of lm-eval's `gsm8k` task (version 3), which compares texts: the target's
//! and the prediction's, both cleaned in the same way. The paper's own rule is in `metrics::paper`.

use ntl_core::numbers::parse::last_number;

use crate::data::read::fraction;

/// What lm-eval writes where its pattern finds nothing.
pub const INVALID: &str = "[invalid]";

/// The value of an answer: of the fraction that it is as a whole, else of its last number.
pub fn value(text: &str) -> Option<f64> {
    fraction(text).or_else(|| last_number(text))
}

/// A way of lm-eval to read a number out of a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LmEvalFilter {
    /// `strict-match`: the first `#### (\-?[0-9\.\,]+)`.
    Strict,
    /// `flexible-extract`: the last `(-?[$0-9.,]{2,})|(-?[0-9]+)`.
    Flexible,
}

impl LmEvalFilter {
    /// Both, as rows keep them.
    pub const ALL: [Self; 2] = [Self::Strict, Self::Flexible];

    /// lm-eval's name of the filter.
    pub fn filter(self) -> &'static str {
        match self {
            Self::Strict => "strict-match",
            Self::Flexible => "flexible-extract",
        }
    }

    /// What it reads; [`INVALID`] where it finds nothing.
    pub fn of(self, text: &str) -> String {
        let found = match self {
            Self::Strict => strict(text),
            Self::Flexible => flexible(text),
        };
        found.map_or_else(|| INVALID.to_owned(), |found| found.trim().to_owned())
    }

    /// Whether lm-eval counts what was read as a match of the target.
    pub fn matches(self, text: &str, target: &str) -> bool {
        cleaned(&self.of(text)) == cleaned(target)
    }
}

/// What `exact_match` compares: without commas, dollars, all up to the last `#### `, and one point at the end; in lower
/// case.
fn cleaned(text: &str) -> String {
    let text = text.replace([',', '$'], "");
    let text = text.rsplit_once("#### ").map_or(text.as_str(), |(_, behind)| behind);
    // A pattern's `$` also stands before a last line break.
    let (body, end) = text.strip_suffix('\n').map_or((text, ""), |body| (body, "\n"));
    format!("{}{end}", body.strip_suffix('.').unwrap_or(body)).to_lowercase()
}

fn strict(text: &str) -> Option<&str> {
    text.match_indices("#### ").find_map(|(at, marker)| {
        let rest = &text[at + marker.len()..];
        let sign = usize::from(rest.starts_with('-'));
        let body = run(&rest[sign..], |byte| byte.is_ascii_digit() || matches!(byte, b'.' | b','));
        (body > 0).then(|| &rest[..sign + body])
    })
}

fn flexible(text: &str) -> Option<&str> {
    let (mut last, mut at) = (None, 0);
    while at < text.len() {
        let Some(rest) = text.get(at..) else {
            at += 1;
            continue;
        };
        let length = flexible_at(rest);
        if length > 0 {
            last = Some(&rest[..length]);
        }
        at += length.max(1);
    }
    last
}

/// How long the match is that begins here: two or more of `$0-9.,`, or else digits, behind an optional minus.
fn flexible_at(rest: &str) -> usize {
    let sign = usize::from(rest.starts_with('-'));
    let many = run(&rest[sign..], |byte| byte.is_ascii_digit() || matches!(byte, b'$' | b'.' | b','));
    let digits = run(&rest[sign..], |byte| byte.is_ascii_digit());
    if many >= 2 {
        sign + many
    } else if digits > 0 {
        sign + digits
    } else {
        0
    }
}

fn run(text: &str, part: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|&byte| part(byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_as_a_whole_has_its_own_value() {
        for (text, want) in [
            (" -7/2 ", Some(-3.5)),
            ("-265624/5", Some(-53124.8)),
            ("so 7/2", Some(2.0)),
            ("1/0", Some(0.0)),
            ("3/", Some(3.0)),
            ("12.5", Some(12.5)),
            ("k", None),
        ] {
            assert_eq!(value(text), want, "{text:?}");
        }
    }

    /// Rows: text, strict, flexible, as Python's `re` finds them with lm-eval's patterns.
    #[test]
    fn texts_are_read_as_lm_eval_reads_them() {
        for (text, strict, flexible) in [
            ("He has 3.\n#### 18", "18", "18"),
            ("#### 1,234.50 and 7", "1,234.50", "7"),
            ("#### -5\n#### 6", "-5", "6"),
            ("####18", INVALID, "18"),
            ("#### $18", INVALID, "$18"),
            ("#### .", ".", INVALID),
            ("It costs $29.00.", INVALID, "$29.00."),
            ("10-3", INVALID, "-3"),
            ("a. b, $", INVALID, INVALID),
            ("wait...", INVALID, "..."),
            ("- 5", INVALID, "5"),
            ("--5", INVALID, "-5"),
            ("é7ü", INVALID, "7"),
            ("٣", INVALID, INVALID),
            ("", INVALID, INVALID),
        ] {
            assert_eq!(LmEvalFilter::Strict.of(text), strict, "{text:?}");
            assert_eq!(LmEvalFilter::Flexible.of(text), flexible, "{text:?}");
        }
    }

    #[test]
    fn both_sides_are_cleaned_before_they_are_compared() {
        for (text, target, strict, flexible) in [
            ("#### 1,234", "so\n#### 1234", true, true),
            ("#### 18.", "x\n#### 18", true, true),
            ("#### 18.0", "x\n#### 18", false, false),
            ("It is $18.", "x\n#### 18", false, true),
            ("none", "x\n#### 18", false, false),
        ] {
            assert_eq!(LmEvalFilter::Strict.matches(text, target), strict, "{text:?}");
            assert_eq!(LmEvalFilter::Flexible.matches(text, target), flexible, "{text:?}");
        }
    }
}

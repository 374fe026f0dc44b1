//! Extracts the number that an answer states.
//!
//! [`value`] is this program's rule. [`LmEvalFilter`] has the two rules of lm-eval's task `gsm8k` (version
//! 3), which normalises the extracted text and the target before it compares them. The rule of the NTL paper
//! is in `ntl_paper::numbers`.

use std::sync::LazyLock;

use ntl_core::numbers::parse::{fraction, last_number};
use regex::{Match, Regex};

/// The text that lm-eval writes if its pattern does not match.
pub const INVALID: &str = "[invalid]";

/// Returns the value of an answer that is a fraction and nothing else, and otherwise the last number in the
/// answer.
pub fn value(text: &str) -> Option<f64> {
    fraction(text).or_else(|| last_number(text))
}

/// Returns the number that answers a question with a prescribed form, as written. It is on the first line that
/// has numbers: the one that the line begins with, unless it is an operand, and otherwise the last one.
pub fn first_stated(text: &str) -> Option<&str> {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        let digits = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)";
        regex(&format!(r"-?(?:{digits}/[0-9]+|{digits}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"))
    });
    let line = text.lines().find(|line| NUMBER.is_match(line))?;
    let is_operand = |end: usize| {
        let operator =
            line[end..].trim_start().strip_prefix(['+', '-', '*', '/', '%', '=', '\u{d7}', '\u{f7}']);
        operator.is_some_and(|rest| rest.trim_start().starts_with(|c: char| c.is_ascii_digit()))
    };
    let is_first = |found: &Match<'_>| line[..found.start()].trim().is_empty() && !is_operand(found.end());
    let found = NUMBER.find(line).filter(is_first).or_else(|| NUMBER.find_iter(line).last())?;
    let number = found.as_str();
    // After an operand, a minus is an operator.
    let is_difference = line[..found.start()].ends_with(|c: char| c.is_alphanumeric() || c == ')');
    number.strip_prefix('-').filter(|_| is_difference).or(Some(number))
}

/// A filter of lm-eval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LmEvalFilter {
    /// The first match.
    Strict,
    /// The last match.
    Flexible,
}

impl LmEvalFilter {
    pub const ALL: [Self; 2] = [Self::Strict, Self::Flexible];

    /// The name in lm-eval.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict-match",
            Self::Flexible => "flexible-extract",
        }
    }

    /// Returns the number as written, or [`INVALID`] if there is none.
    pub fn extract(self, text: &str) -> String {
        static STRICT: LazyLock<Regex> = LazyLock::new(|| regex(r"#### (-?[0-9.,]+)"));
        static FLEXIBLE: LazyLock<Regex> = LazyLock::new(|| regex(r"-?[$0-9.,]{2,}|-?[0-9]+"));
        let found = match self {
            Self::Strict => STRICT.captures(text).and_then(|found| found.get(1)),
            Self::Flexible => FLEXIBLE.find_iter(text).last(),
        };
        found.map_or(INVALID, |found| found.as_str()).to_owned()
    }

    /// Returns lm-eval's `exact_match` of the extracted text and the target.
    pub fn matches(self, text: &str, target: &str) -> bool {
        normalise(&self.extract(text)) == normalise(target)
    }
}

/// Removes commas, dollars, everything up to the last `#### ` and a point at the end, one after the other;
/// then lowercase.
fn normalise(text: &str) -> String {
    // Python's `$` also matches before a last line break.
    static LAST_POINT: LazyLock<Regex> = LazyLock::new(|| regex(r"\.(\n?)\z"));
    let text = text.replace([',', '$'], "");
    let text = text.rsplit_once("#### ").map_or(text.as_str(), |(_, after)| after);
    LAST_POINT.replace(text, "$1").to_lowercase()
}

#[expect(clippy::expect_used, reason = "patterns are constants that tests run")]
pub(crate) fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lm_eval_s_filters_read_numbers_by_their_own_rules() {
        for (text, strict, flexible, ours) in [
            ("#### ₹1,00,000", INVALID, "1,00,000", Some(100_000.0)),
            ("#### 1_000", "1", "000", Some(1000.0)),
            ("#### 1½", "1", "1", Some(1.5)),
            ("#### １２", INVALID, INVALID, Some(12.0)),
            ("#### -€5", INVALID, "5", Some(-5.0)),
        ] {
            assert_eq!(LmEvalFilter::Strict.extract(text), strict, "{text:?}");
            assert_eq!(LmEvalFilter::Flexible.extract(text), flexible, "{text:?}");
            assert_eq!(value(text), ours, "{text:?}");
        }
    }

    #[test]
    fn an_answer_that_is_a_fraction_has_the_value_of_the_fraction() {
        for (text, want) in [
            (" -7/2 ", Some(-3.5)),
            ("-265624/5", Some(-53124.8)),
            ("so 7/2", Some(2.0)),
            ("1/0", Some(0.0)),
            ("3/", Some(3.0)),
            ("12.5", Some(12.5)),
            ("-½", Some(-0.5)),
            ("k", None),
        ] {
            assert_eq!(value(text), want, "{text:?}");
        }
    }

    #[test]
    fn the_stated_number_begins_or_ends_the_first_line_that_has_one() {
        for (text, want) in [
            (" 1287", Some("1287")),
            (" 1287, which is the sum of 744 and 543.", Some("1287")),
            ("1287 - that is 3 more", Some("1287")),
            ("744 \u{d7} 3 = 2232", Some("2232")),
            ("744 + 543", Some("543")),
            ("744 + 543 = 1287.\n1 + 1 = 2", Some("1287")),
            ("\n\nThe answer is 1,287", Some("1,287")),
            ("12/7", Some("12/7")),
            ("1.23e4", Some("1.23e4")),
            ("so 1.5E+10.", Some("1.5E+10")),
            ("it is -4", Some("-4")),
            ("10-3", Some("3")),
            ("10 - 3", Some("3")),
            ("none", None),
            ("", None),
        ] {
            assert_eq!(first_stated(text), want, "{text:?}");
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
            assert_eq!(LmEvalFilter::Strict.extract(text), strict, "{text:?}");
            assert_eq!(LmEvalFilter::Flexible.extract(text), flexible, "{text:?}");
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

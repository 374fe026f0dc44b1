//! Extracts the number that an answer states.
//!
//! [`value`] is this program's rule, and [`stated`] the one for answers in a prescribed form.
//! [`LmEvalFilter`] has the two rules of lm-eval's task `gsm8k` (version 3), which normalises the extracted
//! text and the target before it compares them. The rule of the NTL paper is in `ntl_paper::numbers`.

use std::sync::LazyLock;

use ntl_core::numbers::parse::{first_number, fraction, last_number, whole_number};
use regex::Regex;

use crate::metrics::forms::Form;
use crate::settings::mode::NumberRule;

/// The text that lm-eval writes if its pattern does not match.
pub const INVALID: &str = "[invalid]";

/// Returns the name of a rule in samples.
pub fn rule_name(rule: NumberRule, form: Option<Form>) -> &'static str {
    match (rule, form) {
        (_, Some(_)) => "first-line-number",
        (NumberRule::First, None) => "first-number",
        (NumberRule::Last, None) => "last-number",
        (NumberRule::Marked, None) => "marked-number",
    }
}

/// Returns the value of an answer that is a fraction and nothing else, and otherwise the number in the answer
/// that the rule names.
pub fn value(text: &str, rule: NumberRule) -> Option<f64> {
    match rule {
        NumberRule::First => first_value(text),
        NumberRule::Last => last_value(text),
        NumberRule::Marked => {
            let marked = text.split_once("####").and_then(|(_, result)| first_number(result.lines().next()?));
            marked.or_else(|| last_value(text))
        }
    }
}

fn last_value(text: &str) -> Option<f64> {
    fraction(text).or_else(|| last_number(text))
}

/// Returns the value of the first line that has a number: the fraction that it is, the result of the
/// calculation that it begins with, or its first number.
fn first_value(text: &str) -> Option<f64> {
    let (line, first) = text.lines().find_map(|line| Some((line, first_number(line)?)))?;
    if let Some(value) = fraction(line) {
        return Some(value);
    }
    match line.split_once('=') {
        Some((before, result)) if is_calculation(before) && whole_number(before).is_none() => {
            first_number(result).or(Some(first))
        }
        _ => Some(first),
    }
}

/// Returns whether a text only has digits, spaces and the signs of calculations.
fn is_calculation(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit() || " \t.,$()+-*/\u{d7}\u{f7}\u{2212}".contains(c))
}

/// A number as it is written, without a sign.
const NUMBER: &str = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:/[0-9]+|(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|\.[0-9]+(?:[eE][+-]?[0-9]+)?)";

/// The words and signs before a result.
const EQUALS: &str = r"(?:[=:\x{2248}\x{2192}]|\b(?:is|are|equals|gives|becomes)\b(?:\s+(?:approximately|about|exactly|equal\s+to))*)";

/// Returns the number that answers a question with a prescribed form, as written. It is on the first line
/// that has numbers: the one that the line begins with, unless it is an operand; otherwise the one after the
/// last `is` or `=`, or the last one.
pub fn stated(text: &str, form: Form) -> Option<&str> {
    static ANY: LazyLock<Regex> = LazyLock::new(|| regex(&format!("-?{NUMBER}")));
    static RESULT: LazyLock<Regex> = LazyLock::new(|| regex(&format!(r"{EQUALS}[\s*$]*(-?{NUMBER})")));
    let line = text.lines().find(|line| ANY.is_match(line))?;
    let first = ANY.find(line)?;
    let result = RESULT.captures_iter(line).last().and_then(|found| found.get(1));
    if line[..first.start()].trim().is_empty() {
        let result = result.filter(|result| result.start() >= first.end());
        let after_result = result.map(|result| &line[result.end()..]);
        let result = result.map(|result| result.as_str());
        if !is_operand(first.as_str(), &line[first.end()..], result.zip(after_result), form) {
            return Some(first.as_str());
        }
    }
    if let Some(result) = result {
        return Some(result.as_str());
    }
    let last = ANY.find_iter(line).last()?;
    // After an operand, a minus is an operator.
    let is_difference = line[..last.start()].ends_with(|c: char| c.is_alphanumeric() || c == ')');
    match last.as_str().strip_prefix('-') {
        Some(digits) if is_difference => Some(digits),
        _ => Some(last.as_str()),
    }
}

/// Returns whether the number that a line begins with only repeats the question, as in `744 + 543 = 1287`,
/// `744 divided by 543 is 1` and `7/4 is 1.75`. `rest` is the line after it, and `result` the number after
/// the last `is` or `=`, with the line after that.
fn is_operand(number: &str, rest: &str, result: Option<(&str, &str)>, form: Form) -> bool {
    static OPERATOR: LazyLock<Regex> =
        LazyLock::new(|| regex(&format!(r"^\s*[-+*/%\x{{d7}}\x{{f7}}]\s*\(*{NUMBER}")));
    static EQUALS_FIRST: LazyLock<Regex> = LazyLock::new(|| regex(&format!(r"^\s*{EQUALS}")));
    if OPERATOR.is_match(rest) {
        return true;
    }
    let Some((result, after_result)) = result else { return false };
    if !EQUALS_FIRST.is_match(rest) {
        return rest.trim_start().starts_with(char::is_alphabetic);
    }
    let ends_line = !after_result.contains(|c: char| c.is_alphanumeric());
    ends_line || form.has(result) && !form.has(number)
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
            assert_eq!(value(text, NumberRule::Last), ours, "{text:?}");
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
            assert_eq!(value(text, NumberRule::Last), want, "{text:?}");
        }
    }

    #[test]
    fn the_first_number_is_the_result_of_the_calculation_that_a_text_begins_with() {
        for (text, want) in [
            (" 104.4\nQ: What is 1.13", Some(104.4)),
            ("\n\n 5\n6", Some(5.0)),
            ("It is 104.4, not 7.", Some(104.4)),
            (" -7/2\nQ: 3", Some(-3.5)),
            ("12 + 7 = 19, not 20", Some(19.0)),
            (" (12 + 7) * 2 = 38", Some(38.0)),
            ("= 19", Some(19.0)),
            ("1287 = 744 + 543", Some(1287.0)),
            ("12 + 7 = ?", Some(12.0)),
            ("5-7 days", Some(5.0)),
            ("x = 5", Some(5.0)),
            ("about 1 \u{bd} or 2", Some(1.5)),
            ("-$1,234.50 to 3", Some(-1234.5)),
            ("1e999 2", Some(2.0)),
            ("none", None),
        ] {
            assert_eq!(value(text, NumberRule::First), want, "{text:?}");
        }
    }

    #[test]
    fn the_marked_number_is_the_result_also_if_the_text_goes_on() {
        for (text, want) in [
            ("2 + 3 = 5\n#### 5\n\nSo 2 cats and 3 dogs.", Some(5.0)),
            ("#### $1,200\n#### 7", Some(1200.0)),
            ("####5", Some(5.0)),
            ("2 + 3 = 5", Some(5.0)),
            ("2 + 3 = 5 ####", Some(5.0)),
            ("5 ####\n7", Some(7.0)),
            ("none", None),
        ] {
            assert_eq!(value(text, NumberRule::Marked), want, "{text:?}");
        }
    }

    #[test]
    fn the_stated_number_is_the_first_of_a_line_unless_it_is_an_operand() {
        use Form::{Decimal, Fraction, Integer, Scientific};
        for (form, text, want) in [
            (Integer, " 1287", Some("1287")),
            (Integer, " 1287, which is the sum of 744 and 543.", Some("1287")),
            (Integer, "1287, which is 3 more than 1284", Some("1287")),
            (Integer, "1287 - that is 3 more", Some("1287")),
            (Integer, "1287 = 744 + 543", Some("1287")),
            (Integer, "1287 is 744 plus 543", Some("1287")),
            (Integer, "1287 (744 + 543 = 1287)", Some("1287")),
            (Integer, "744 \u{d7} 3 = 2232", Some("2232")),
            (Integer, "744 + 543", Some("543")),
            (Integer, "744 + 543 = 1287.\n1 + 1 = 2", Some("1287")),
            (Integer, "The answer is 1287 (from 744 and 543).", Some("1287")),
            (Integer, "Answer: **1287** after 2 steps", Some("1287")),
            (Integer, "744 divided by 543, rounded down to an integer, is 1.", Some("1")),
            (Integer, "744 divided by 543 is exactly 1 with remainder 201", Some("1")),
            (Integer, "1 is 744 divided by 543, rounded down", Some("1")),
            (Integer, "744/543 = 1 (rounded)", Some("1")),
            (Integer, "12 is larger than 7", Some("12")),
            (Integer, "of 12 and 7, 12", Some("12")),
            (Integer, "\n\nThe answer is 1,287", Some("1,287")),
            (Integer, "it is -4", Some("-4")),
            (Integer, "10-3", Some("3")),
            (Integer, "10 - 3", Some("3")),
            (Decimal, ".5", Some(".5")),
            (Decimal, "-.5", Some("-.5")),
            (Decimal, "7/4 is 1.75", Some("1.75")),
            (Decimal, "7/4 as a decimal number is 1.75.", Some("1.75")),
            (Decimal, "1.75 is 7/4 as a decimal number.", Some("1.75")),
            (Fraction, "12/7", Some("12/7")),
            (Fraction, "12/8 = 3/2.", Some("3/2")),
            (Fraction, "(1/2) / (3/4) = 2/3", Some("2/3")),
            (Scientific, "1.23e4", Some("1.23e4")),
            (Scientific, "so 1.5E+10.", Some("1.5E+10")),
            (Scientific, "65.669 \u{2248} 6.6e1 (2 figures)", Some("6.6e1")),
            (Scientific, "12.5 in scientific notation is 1.25e1", Some("1.25e1")),
            (Integer, "none", None),
            (Integer, "", None),
        ] {
            assert_eq!(stated(text, form), want, "{text:?}");
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

//! Scores of answers that are text: exact match and token F1 as in SQuAD, BLEU and ROUGE.

use ntl_paper::TextOverlap;
use ntl_paper::bleu::NgramCounts;
use ntl_paper::ngrams::{f_measure, overlap};

/// Scores of one text against its reference.
#[derive(Debug, Clone, PartialEq)]
pub struct TextScores {
    /// Whether both texts are equal apart from case, punctuation, articles and spaces.
    pub exact: bool,
    /// F1 of the tokens.
    pub f1: f64,
    /// BLEU and ROUGE.
    pub overlap: TextOverlap,
}

impl TextScores {
    pub fn of(prediction: &str, reference: &str) -> Self {
        let predicted = normalized(prediction);
        let referenced = normalized(reference);
        Self {
            exact: predicted == referenced,
            f1: f1(&predicted, &referenced),
            overlap: TextOverlap::of(prediction, reference),
        }
    }
}

/// Returns the BLEU score of all texts together, or `None` if there are none.
pub(super) fn corpus_bleu(texts: &[&TextScores], weights: &[f64]) -> Option<f64> {
    let counts = texts.iter().map(|text| &text.overlap.bleu).zip(weights.iter().map(|&weight| weight as u64));
    (!texts.is_empty()).then(|| NgramCounts::sum(counts).score())
}

/// Returns SQuAD's tokens: lowercase, without punctuation and articles. Unlike SQuAD, it keeps the signs and
/// decimal points of numbers, and reads `- 4` as `-4`.
fn normalized(text: &str) -> Vec<String> {
    let text: Vec<char> = text.to_lowercase().replace('\u{2212}', "-").chars().collect();
    let mut kept = String::new();
    let mut position = 0;
    while let Some(&character) = text.get(position) {
        let before = &text[..position];
        let behind = &text[position + 1..];
        position += 1;
        if character == '-' && is_sign(before, behind) {
            kept.push('-');
            position += spaces(behind);
        } else if !character.is_ascii_punctuation() || (character == '.' && is_decimal_point(before, behind))
        {
            kept.push(character);
        }
    }
    let words = kept.split_whitespace().filter(|word| !matches!(*word, "a" | "an" | "the"));
    words.map(str::to_owned).collect()
}

/// Returns `true` if a minus is the sign of the number that follows: it is neither a hyphen nor between two
/// operands.
fn is_sign(before: &[char], behind: &[char]) -> bool {
    let gap = spaces(behind);
    let number = behind[gap..].strip_prefix(&['$']).unwrap_or(&behind[gap..]);
    let starts_number = match number {
        [first, ..] if first.is_ascii_digit() => true,
        ['.', second, ..] => second.is_ascii_digit(),
        _ => false,
    };
    let last = before.iter().rev().find(|c| !c.is_whitespace());
    let last_operand = last.is_some_and(|c| c.is_ascii_digit() || *c == ')');
    let touches_word = before.last().is_some_and(|c| c.is_alphanumeric() || *c == ')');
    starts_number && !touches_word && !(gap > 0 && last_operand)
}

fn is_decimal_point(before: &[char], behind: &[char]) -> bool {
    behind.first().is_some_and(char::is_ascii_digit) && !before.last().is_some_and(|c| c.is_alphabetic())
}

/// Returns the number of spaces at the beginning of a text.
fn spaces(text: &[char]) -> usize {
    text.iter().take_while(|c| **c == ' ').count()
}

fn f1(predicted: &[String], referenced: &[String]) -> f64 {
    if predicted.is_empty() || referenced.is_empty() {
        return f64::from(u8::from(predicted.is_empty() && referenced.is_empty()));
    }
    f_measure(overlap(predicted.iter(), referenced.iter()), predicted.len(), referenced.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metrics, Row};

    #[test]
    fn tokens_are_compared_without_case_punctuation_and_articles() {
        for (prediction, reference, exact, f1) in [
            ("The cat.", "cat", true, 1.0),
            ("a red cat", "the cat", false, 2.0 / 3.0),
            ("cat cat", "cat", false, 2.0 / 3.0),
            ("dog", "cat", false, 0.0),
            ("", "", true, 1.0),
            ("", "cat", false, 0.0),
        ] {
            let found = TextScores::of(prediction, reference);
            assert_eq!(found.exact, exact, "{prediction:?}");
            assert!((found.f1 - f1).abs() < 1e-12, "{prediction:?}: {}", found.f1);
        }
    }

    #[test]
    fn a_number_keeps_its_sign_and_its_point() {
        for (prediction, reference, exact) in [
            ("4", "-4", false),
            ("-4", "-4", true),
            ("- 4", "-4", true),
            ("\u{2212}4", "-4", true),
            ("It is -4.", "it is 4", false),
            ("-$1,234", "-1234", true),
            ("3.5", "35", false),
            ("-.5", ".5", false),
            ("4.", "4", true),
            ("10 - 3", "10 3", true),
            ("well-known", "wellknown", true),
            ("covid-19", "covid19", true),
        ] {
            let found = TextScores::of(prediction, reference);
            assert_eq!(found.exact, exact, "{prediction:?} and {reference:?}");
            assert_eq!(found.f1 > 0.999, exact, "{prediction:?} and {reference:?}: {}", found.f1);
        }
    }

    #[test]
    fn f1_is_averaged_and_bleu_counts_are_added() {
        let texts = [TextScores::of("a b c d", "a b c d"), TextScores::of("x", "y")];
        let rows = texts.clone().map(|text| Row { text_scores: Some(text), ..Row::read(1.0, 1.0) });
        let f1 = Metrics::of(&rows.each_ref(), 0).get("f1").value;
        assert_eq!(f1, Some(0.5));
        let bleu = corpus_bleu(&texts.each_ref(), &[1.0, 1.0]).unwrap();
        assert!((bleu - 80.0_f64.powf(0.25) * 100.0_f64.powf(0.75)).abs() < 1e-9, "{bleu}");
        assert_eq!(corpus_bleu(&[], &[]), None);
    }
}

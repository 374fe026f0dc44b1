//! Scores of answers that are text: exact match and F1 of tokens as in SQuAD, BLEU and ROUGE.

use super::bleu::NgramCounts;
use super::overlap;
use super::rouge::{Rouge, f_measure};

/// How one text compares with its reference.
#[derive(Debug, Clone, PartialEq)]
pub struct TextScores {
    /// Whether both are the same but for case, punctuation, articles and spaces.
    pub exact: bool,
    /// Of their tokens.
    pub f1: f64,
    pub bleu: NgramCounts,
    pub rouge: Rouge,
}

impl TextScores {
    pub fn of(prediction: &str, reference: &str) -> Self {
        let (predicted, referenced) = (normalized(prediction), normalized(reference));
        Self {
            exact: predicted == referenced,
            f1: f1(&predicted, &referenced),
            bleu: NgramCounts::of(prediction.trim(), reference.trim()),
            rouge: Rouge::of(prediction, reference),
        }
    }
}

/// BLEU of all texts together; `None` of nothing.
pub(super) fn corpus_bleu(texts: &[&TextScores], weights: &[f64]) -> Option<f64> {
    let counts = texts.iter().map(|text| &text.bleu).zip(weights.iter().map(|&weight| weight as u64));
    (!texts.is_empty()).then(|| NgramCounts::sum(counts).score())
}

/// SQuAD's tokens: lowercase, without punctuation and articles.
fn normalized(text: &str) -> Vec<String> {
    let kept: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let words = kept.split_whitespace().filter(|word| !matches!(*word, "a" | "an" | "the"));
    words.map(str::to_owned).collect()
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
    fn f1_is_averaged_and_bleu_adds_counts() {
        let texts = [TextScores::of("a b c d", "a b c d"), TextScores::of("x", "y")];
        let rows = texts.clone().map(|text| Row { text_scores: Some(text), ..Row::read(1.0, 1.0) });
        let f1 = Metrics::of(&rows.each_ref(), 0).get("f1").value;
        assert_eq!(f1, Some(0.5));
        let bleu = corpus_bleu(&texts.each_ref(), &[1.0, 1.0]).unwrap();
        assert!((bleu - 80.0_f64.powf(0.25) * 100.0_f64.powf(0.75)).abs() < 1e-9, "{bleu}");
        assert_eq!(corpus_bleu(&[], &[]), None);
    }
}

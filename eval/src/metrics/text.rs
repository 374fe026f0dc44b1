//! Figures of answers that are text: exact match and F1 of tokens as in SQuAD, BLEU and ROUGE.

use std::collections::HashMap;

use super::Name;
use super::bleu::Counts;
use super::number::mean;
use super::rouge::{Rouge, f_measure};

/// The figures, in the order of [`figures`].
pub const NAMES: [Name; 5] = [Name::F1, Name::Bleu, Name::Rouge1, Name::Rouge2, Name::RougeL];

/// How one text compares with the reference.
#[derive(Debug, Clone, PartialEq)]
pub struct TextScores {
    /// Whether both are the same but for case, punctuation, articles and spaces.
    pub exact: bool,
    /// F1 of their tokens.
    pub f1: f64,
    /// N-gram counts.
    pub bleu: Counts,
    /// ROUGE.
    pub rouge: Rouge,
}

impl TextScores {
    /// Compares two texts.
    pub fn of(prediction: &str, reference: &str) -> Self {
        let (predicted, referenced) = (normalized(prediction), normalized(reference));
        Self {
            exact: predicted == referenced,
            f1: f1(&predicted, &referenced),
            bleu: Counts::of(prediction.trim(), reference.trim()),
            rouge: Rouge::of(prediction, reference),
        }
    }
}

/// The figures, row `i` counted `times[i]` times.
pub fn figures(rows: &[&TextScores], times: &[u32]) -> Vec<Option<f64>> {
    let average =
        |get: fn(&TextScores) -> f64| mean(&rows.iter().map(|row| get(row)).collect::<Vec<_>>(), times);
    let counts =
        Counts::sum(rows.iter().map(|row| &row.bleu).zip(times.iter().map(|&times| u64::from(times))));
    vec![
        average(|row| row.f1),
        (!rows.is_empty()).then(|| counts.score()),
        average(|row| row.rouge.one),
        average(|row| row.rouge.two),
        average(|row| row.rouge.longest),
    ]
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
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in referenced {
        *left.entry(word).or_insert(0) += 1;
    }
    let mut common = 0;
    for word in predicted {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    f_measure(common, predicted.len(), referenced.len())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn corpus_figures_average_all_but_bleu_which_adds_counts() {
        let (one, two) = (TextScores::of("a b c d", "a b c d"), TextScores::of("x", "y"));
        let found = figures(&[&one, &two], &[1, 1]);
        assert_eq!(found[0], Some(0.5));
        assert!(
            found[1].is_some_and(|bleu| (bleu - 80.0_f64.powf(0.25) * 100.0_f64.powf(0.75)).abs() < 1e-9),
            "{found:?}"
        );
        assert_eq!(figures(&[], &[]), [None; 5]);
    }
}

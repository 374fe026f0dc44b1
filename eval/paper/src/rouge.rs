//! ROUGE-1, -2 and -L (Lin 2004) as Google's `rouge_score` computes them with its stemmer.
//!
//! In: a prediction and a reference. Out: F-measures 0..1. Words are runs of `a-z0-9` after lowercasing.
//! Words of more than three characters are stemmed (`porter`).

use crate::ngrams::{f_measure, overlap};
use crate::porter::stem;

/// F-measures of one text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rouge {
    /// F-measure of words.
    pub one: f64,
    /// F-measure of pairs of neighbouring words.
    pub two: f64,
    /// F-measure of the longest common subsequence of words.
    pub longest: f64,
}

impl Rouge {
    pub fn of(prediction: &str, reference: &str) -> Self {
        let prediction = words(prediction);
        let reference = words(reference);
        let common = common_subsequence(&prediction, &reference);
        Self {
            one: n_gram_f(&prediction, &reference, 1),
            two: n_gram_f(&prediction, &reference, 2),
            longest: f_measure(common, prediction.len(), reference.len()),
        }
    }
}

fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit());
    let words = words.filter(|word| !word.is_empty());
    words.map(|word| if word.len() > 3 { stem(word) } else { word.to_owned() }).collect()
}

fn n_gram_f(prediction: &[String], reference: &[String], n: usize) -> f64 {
    let prediction = prediction.windows(n);
    let reference = reference.windows(n);
    let predicted = prediction.len();
    let referenced = reference.len();
    f_measure(overlap(prediction, reference), predicted, referenced)
}

/// Returns the length of the longest common subsequence.
fn common_subsequence(a: &[String], b: &[String]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for word in a {
        let mut diagonal = 0;
        for (index, other) in b.iter().enumerate() {
            let above = row[index + 1];
            row[index + 1] = if word == other { diagonal + 1 } else { above.max(row[index]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f_measures_match_rouge_score() {
        for (prediction, reference, want) in [
            ("the cat sat", "the cat ran", (2.0 / 3.0, 0.5, 2.0 / 3.0)),
            ("b a", "a b", (1.0, 0.0, 0.5)),
            ("running runs", "run 1", (0.5, 0.0, 0.5)),
            ("", "7", (0.0, 0.0, 0.0)),
            ("The answer is 18", "18", (0.4, 0.0, 0.4)),
        ] {
            let got = Rouge::of(prediction, reference);
            let off = [got.one - want.0, got.two - want.1, got.longest - want.2];
            assert!(off.iter().all(|off| off.abs() < 1e-12), "{prediction:?}: {got:?}");
        }
    }
}

//! Matches the items of two runs.
//!
//! Errors and correlations cover the pairs with a number on both sides. Accuracy and other scores cover the
//! pairs without a failed request and count an answer without a number as incorrect. All other pairs are only
//! counted.

use serde::Serialize;

use super::{CompareError, ItemDifference};
use crate::format::shortened;
use crate::metrics::corrected::JudgedScore;
use crate::metrics::numbers::Prediction;
use crate::stats::paired::{McNemar, mcnemar};
use crate::store::sample::Sample;
use crate::store::saved::Run;

/// PairCounts of pairs by outcome: a number was read, or the request failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PairCounts {
    /// All pairs.
    pub n: usize,
    pub both_read: usize,
    pub only_a_read: usize,
    pub only_b_read: usize,
    pub neither_read: usize,
    pub failed_a: usize,
    pub failed_b: usize,
}

/// Pairs of samples of the same items.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs<'a> {
    pairs: Vec<(&'a Sample, &'a Sample)>,
    /// Whether a judge scored the answers of two systems to the same inputs.
    pub are_of_systems: bool,
}

impl<'a> Pairs<'a> {
    pub fn of(a: &'a Run, b: &'a Run) -> Result<Self, CompareError> {
        let [name_a, name_b] = [a, b].map(|run| format!("{} {}", run.report.task, run.report.split));
        if name_a != name_b {
            return Err(CompareError::Task { a: name_a, b: name_b });
        }
        let pairs: Vec<_> = a.samples.iter().zip(&b.samples).collect();
        let are_of_systems = pairs.iter().any(|(a, b)| are_answers_to_one_input(a, b));
        for (a, b) in &pairs {
            if are_of_systems {
                same_input(a, b)?;
            } else {
                same_item(a, b)?;
            }
        }
        if a.samples.len() != b.samples.len() {
            return Err(CompareError::Length { a: a.samples.len(), b: b.samples.len() });
        }
        Ok(Self { pairs, are_of_systems })
    }

    /// Returns only the pairs whose place in `kept` is true.
    pub fn only(mut self, kept: &[bool]) -> Self {
        let mut kept = kept.iter();
        self.pairs.retain(|_| kept.next().copied().unwrap_or(false));
        self
    }

    /// Iterates over the pairs without a failed request.
    pub fn answered(&self) -> impl Iterator<Item = (&'a Sample, &'a Sample)> {
        self.pairs.iter().copied().filter(|(a, b)| !a.failed() && !b.failed())
    }

    /// Returns how much higher the judge and people score B's answer than A's, for the pairs with a score of
    /// the judge on both sides.
    pub fn score_differences(&self) -> Vec<JudgedScore> {
        let mut differences = Vec::new();
        for (a, b) in self.answered() {
            if let (Some(score_a), Some(score_b)) = (a.score("score"), b.score("score")) {
                let human = b.truth.zip(a.truth).map(|(b, a)| b - a);
                differences.push(JudgedScore { judge: score_b - score_a, human });
            }
        }
        differences
    }

    /// Iterates over the numbers of pairs with a number on both sides.
    pub fn read(&self) -> impl Iterator<Item = [Prediction; 2]> {
        self.pairs.iter().filter_map(|(a, b)| read(a, b))
    }

    pub fn counts(&self) -> PairCounts {
        let mut counts = PairCounts { n: self.pairs.len(), ..PairCounts::default() };
        for (a, b) in &self.pairs {
            match (a.prediction, b.prediction) {
                (Some(_), Some(_)) => counts.both_read += 1,
                (Some(_), None) => counts.only_a_read += 1,
                (None, Some(_)) => counts.only_b_read += 1,
                (None, None) => counts.neither_read += 1,
            }
            counts.failed_a += usize::from(a.failed());
            counts.failed_b += usize::from(b.failed());
        }
        counts
    }

    /// Tests which side answers more items exactly. `None` without answers.
    pub fn mcnemar(&self) -> Option<McNemar> {
        let (mut n, mut only_a, mut only_b) = (0, 0, 0);
        for (a, b) in self.answered() {
            n += 1;
            only_a += usize::from(a.right() && !b.right());
            only_b += usize::from(b.right() && !a.right());
        }
        (n > 0).then(|| mcnemar(only_a, only_b))
    }

    /// Returns at most `most` items whose absolute errors differ, the largest difference first.
    pub fn largest_differences(&self, most: usize) -> Vec<ItemDifference> {
        let mut items = Vec::new();
        for (a, b) in &self.pairs {
            let Some([read_a, read_b]) = read(a, b) else { continue };
            let difference = read_b.absolute_error - read_a.absolute_error;
            if difference.abs() > 0.0 {
                items.push(ItemDifference {
                    doc_id: a.doc_id,
                    question: a.doc.question.clone(),
                    truth: read_a.truth,
                    a: read_a.estimates.median,
                    b: read_b.estimates.median,
                    difference,
                });
            }
        }
        items.sort_by(|x, y| y.difference.abs().total_cmp(&x.difference.abs()));
        items.truncate(most);
        items
    }
}

/// Returns the numbers of both sides, with the truth of A for both.
fn read(a: &Sample, b: &Sample) -> Option<[Prediction; 2]> {
    let a = a.prediction()?;
    let b = b.prediction()?;
    Some([a, Prediction { truth: a.truth, ..b }])
}

fn same_item(a: &Sample, b: &Sample) -> Result<(), CompareError> {
    same_text(a, "number", &a.doc_id.to_string(), &b.doc_id.to_string())?;
    same_text(a, "question", &a.doc.question, &b.doc.question)?;
    same_text(a, "target", &a.target_text(), &b.target_text())
}

/// Returns whether the samples judge different answers to the same input.
fn are_answers_to_one_input(a: &Sample, b: &Sample) -> bool {
    a.doc.input.is_some() && a.doc.input == b.doc.input && a.doc.question != b.doc.question
}

fn same_input(a: &Sample, b: &Sample) -> Result<(), CompareError> {
    same_text(a, "number", &a.doc_id.to_string(), &b.doc_id.to_string())?;
    let input_a = a.doc.input.as_deref().unwrap_or_default();
    let input_b = b.doc.input.as_deref().unwrap_or_default();
    same_text(a, "input", input_a, input_b)
}

fn same_text(sample: &Sample, what: &'static str, a: &str, b: &str) -> Result<(), CompareError> {
    if a == b {
        return Ok(());
    }
    Err(CompareError::Item { doc_id: sample.doc_id, what, a: shortened(a, 80), b: shortened(b, 80) })
}

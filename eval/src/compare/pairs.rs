//! Matches the items of two runs.
//!
//! Errors and correlations cover the pairs with a number on both sides. Accuracy and other scores cover the
//! pairs without a failed request and count an answer without a number as incorrect. All other pairs are only
//! counted.

use serde::Serialize;

use super::{CompareError, ItemDifference};
use crate::format::shortened;
use crate::metrics::numbers::Prediction;
use crate::store::sample::Sample;
use crate::store::saved::Run;

/// PairCounts of pairs by outcome: a number was read, or the request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
pub struct Pairs<'a>(Vec<(&'a Sample, &'a Sample)>);

impl<'a> Pairs<'a> {
    pub fn of(a: &'a Run, b: &'a Run) -> Result<Self, CompareError> {
        let name = |run: &Run| format!("{} {}", run.report.task, run.report.split);
        if name(a) != name(b) {
            return Err(CompareError::Task { a: name(a), b: name(b) });
        }
        let pairs: Vec<_> = a.samples.iter().zip(&b.samples).collect();
        pairs.iter().try_for_each(|(a, b)| same_item(a, b))?;
        if a.samples.len() != b.samples.len() {
            return Err(CompareError::Length { a: a.samples.len(), b: b.samples.len() });
        }
        Ok(Self(pairs))
    }

    /// Iterates over the pairs without a failed request.
    pub fn answered(&self) -> impl Iterator<Item = (&'a Sample, &'a Sample)> {
        self.0.iter().copied().filter(|(a, b)| !a.failed() && !b.failed())
    }

    /// Iterates over the numbers of pairs with a number on both sides.
    pub fn read(&self) -> impl Iterator<Item = [Prediction; 2]> {
        self.0.iter().filter_map(|(a, b)| read(a, b))
    }

    pub fn counts(&self) -> PairCounts {
        let read = |sample: &Sample| sample.prediction.is_some();
        let count = |wanted| self.0.iter().filter(|(a, b)| (read(a), read(b)) == wanted).count();
        PairCounts {
            n: self.0.len(),
            both_read: count((true, true)),
            only_a_read: count((true, false)),
            only_b_read: count((false, true)),
            neither_read: count((false, false)),
            failed_a: self.0.iter().filter(|(a, _)| a.failed()).count(),
            failed_b: self.0.iter().filter(|(_, b)| b.failed()).count(),
        }
    }

    /// Returns at most `most` items whose absolute errors differ, the largest difference first.
    pub fn largest_differences(&self, most: usize) -> Vec<ItemDifference> {
        let difference = |(a, b): &(&Sample, &Sample)| {
            let [read_a, read_b] = read(a, b)?;
            Some(ItemDifference {
                doc_id: a.doc_id,
                question: a.doc.question.clone(),
                truth: read_a.truth,
                a: read_a.estimates.median,
                b: read_b.estimates.median,
                difference: read_b.absolute_error - read_a.absolute_error,
            })
        };
        let mut items: Vec<ItemDifference> = self.0.iter().filter_map(difference).collect();
        items.retain(|item| item.difference.abs() > 0.0);
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
    let differs = |what, x: String, y: String| {
        let a_text = shortened(&x, 80);
        let b_text = shortened(&y, 80);
        if x == y { Ok(()) } else { Err(CompareError::Item { doc_id: a.doc_id, what, a: a_text, b: b_text }) }
    };
    differs("number", a.doc_id.to_string(), b.doc_id.to_string())?;
    differs("question", a.doc.question.clone(), b.doc.question.clone())?;
    differs("target", a.target_text(), b.target_text())
}

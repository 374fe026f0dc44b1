//! The items of two runs, matched.
//!
//! The rule for what was not read: errors and correlations are over pairs where both sides gave a number; accuracy and
//! other scores are over pairs where neither request failed, an answer without a number being wrong. All others are
//! counted.

use serde::Serialize;

use super::{CompareError, ItemDifference};
use crate::figures::shortened;
use crate::store::saved::{Estimates, Run, Sample};

/// How many pairs have which fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All pairs.
    pub n: usize,
    /// Both gave a number.
    pub both_read: usize,
    /// A alone did.
    pub only_a_read: usize,
    /// B alone did.
    pub only_b_read: usize,
    /// Neither did.
    pub neither_read: usize,
    /// Requests of A that failed.
    pub failed_a: usize,
    /// Requests of B that failed.
    pub failed_b: usize,
}

/// A number that was read on both sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Read {
    /// What was asked for.
    pub truth: f64,
    /// What A gave.
    pub a: Estimates,
    /// What B gave.
    pub b: Estimates,
    /// Absolute errors of A and B.
    pub errors: (f64, f64),
}

/// Pairs of samples of the same items.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs<'a>(Vec<(&'a Sample, &'a Sample)>);

impl<'a> Pairs<'a> {
    /// Matches the samples of two runs.
    ///
    /// # Errors
    /// Task, split, number of items, or a question or target differ.
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

    /// Pairs where neither request failed.
    pub fn answered(&self) -> impl Iterator<Item = (&'a Sample, &'a Sample)> {
        self.0.iter().copied().filter(|(a, b)| !a.failed() && !b.failed())
    }

    /// Pairs where both sides gave a number.
    pub fn read(&self) -> impl Iterator<Item = Read> {
        self.0.iter().filter_map(read)
    }

    /// Absolute errors where both sides gave a number.
    pub fn errors(&self) -> impl Iterator<Item = (f64, f64)> {
        self.read().map(|read| read.errors)
    }

    /// How many have which fate.
    pub fn counts(&self) -> Counts {
        let count =
            |fate: &dyn Fn(&Sample, &Sample) -> bool| self.0.iter().filter(|(a, b)| fate(a, b)).count();
        let is_read = |sample: &Sample| sample.prediction.is_some();
        Counts {
            n: self.0.len(),
            both_read: count(&|a, b| is_read(a) && is_read(b)),
            only_a_read: count(&|a, b| is_read(a) && !is_read(b)),
            only_b_read: count(&|a, b| !is_read(a) && is_read(b)),
            neither_read: count(&|a, b| !is_read(a) && !is_read(b)),
            failed_a: count(&|a, _| a.failed()),
            failed_b: count(&|_, b| b.failed()),
        }
    }

    /// The items whose absolute errors differ, largest difference first, at most `most`.
    pub fn largest_differences(&self, most: usize) -> Vec<ItemDifference> {
        let difference = |pair: &(&Sample, &Sample)| {
            let Read { truth, a, b, errors } = read(pair)?;
            let (doc_id, question) = (pair.0.doc_id, pair.0.doc.question.clone());
            let difference = errors.1 - errors.0;
            Some(ItemDifference { doc_id, question, truth, a: a.median, b: b.median, difference })
        };
        let mut items: Vec<ItemDifference> = self.0.iter().filter_map(difference).collect();
        items.retain(|item| item.difference.abs() > 0.0);
        items.sort_by(|x, y| y.difference.abs().total_cmp(&x.difference.abs()));
        items.truncate(most);
        items
    }
}

fn read((a, b): &(&Sample, &Sample)) -> Option<Read> {
    let errors = a.absolute_error().zip(b.absolute_error())?;
    let ((truth, a), (_, b)) = a.read().zip(b.read())?;
    Some(Read { truth, a, b, errors })
}

fn same_item(a: &Sample, b: &Sample) -> Result<(), CompareError> {
    let differs = |what, x: String, y: String| {
        let (a_text, b_text) = (shortened(&x, 80), shortened(&y, 80));
        if x == y { Ok(()) } else { Err(CompareError::Item { doc_id: a.doc_id, what, a: a_text, b: b_text }) }
    };
    differs("number", a.doc_id.to_string(), b.doc_id.to_string())?;
    differs("question", a.doc.question.clone(), b.doc.question.clone())?;
    differs("target", a.target_text(), b.target_text())
}

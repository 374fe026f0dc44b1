//! Searches for the distribution of the number that a model would write.
//!
//! Each starts at a [`Root`] and ends with one `Event::Number`. [`tree`] is exact, [`sample`] and [`beam`]
//! see a part of the distribution, [`token`] is a diagnostic; [`after`] writes text before the number.

mod after;
mod beam;
mod refused;
mod sample;
mod token;
mod tree;

use std::sync::Arc;

pub(super) use token::expectation;

use super::{Decoding, Vocabulary};
use crate::contract::{NumberJob, NumberMethod, PathRow};
use crate::numbers::{NumberRules, NumberState, NumberValues};

#[derive(Debug, Clone)]
struct Root {
    /// The row that predicts the number's first token.
    row: PathRow,
    /// The part of the number that has been written.
    state: NumberState,
}

/// `before`: the ids before the answer in the same sequence.
pub(super) fn decoding(
    job: &NumberJob,
    vocabulary: &Vocabulary,
    before: &[u32],
    first_token: u32,
) -> Box<dyn Decoding> {
    match &job.after {
        Some(after) => Box::new(after::NumberAfterText::new(job, after, vocabulary, before, first_token)),
        None => {
            let root = Root { row: PathRow::new(None, first_token), state: NumberState::START };
            search(job, vocabulary, rules(job, vocabulary), root, 0)
        }
    }
}

/// Costs a pass over the vocabulary if the job has terminators or thousands separators.
fn rules(job: &NumberJob, vocabulary: &Vocabulary) -> NumberRules {
    vocabulary.grammar.rules(job.limits, job.terminator.clone(), job.values)
}

/// `stream` gives each of several searches of one request its own random numbers.
fn search(
    job: &NumberJob,
    vocabulary: &Vocabulary,
    rules: NumberRules,
    root: Root,
    stream: u64,
) -> Box<dyn Decoding> {
    match &job.method {
        NumberMethod::Tree { tolerance, nodes_max, precision } => {
            let tolerance = *tolerance;
            let nodes_max = *nodes_max;
            let precision = precision.clone();
            // The estimates of a rating are conditional on the scale, so the search must resolve even a small
            // mass there.
            let is_conditional = matches!(job.values, NumberValues::Scale(_));
            let limits = tree::TreeLimits { tolerance, is_conditional, nodes_max, precision };
            let tree = tree::NumberTree::new(vocabulary, rules, limits, root);
            Box::new(if job.reports_refused { tree.reporting_refused(vocabulary) } else { tree })
        }
        NumberMethod::Sample { samples, seed } => {
            let grammar = Arc::clone(&vocabulary.grammar);
            Box::new(sample::NumberSample::new(grammar, rules, *samples, *seed, stream, root))
        }
        NumberMethod::Beam { beams } => Box::new(beam::NumberBeam::new(vocabulary, rules, *beams, root)),
        NumberMethod::Token => Box::new(token::TokenExpectation::new(vocabulary, rules, root)),
    }
}

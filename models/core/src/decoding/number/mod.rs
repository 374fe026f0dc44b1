//! Numbers: the ways to find the distribution of the number that a model would write.
//!
//! All start at a [`Root`] and end in one [`Event::Number`]. [`tree`] is exact, [`sample`] and [`beam`] see a part
//! of the distribution, [`token`] is a diagnostic; [`after`] lets other text come first.

mod after;
mod beam;
mod sample;
mod token;
mod tree;

use std::sync::Arc;

pub(super) use token::expectation;

use super::{Decoding, Vocabulary};
use crate::engine::{NumberJob, NumberMethod, PathRow};
use crate::numbers::{NumberRules, NumberState};

/// Where a search begins.
#[derive(Debug, Clone)]
struct Root {
    /// The row whose logits say how the number begins.
    row: PathRow,
    /// What is written of the number already.
    state: NumberState,
}

/// Starts decoding a number whose first row holds `first_token`, behind the ids `before` of the same sequence.
pub(super) fn decoding(
    job: &NumberJob,
    vocabulary: &Vocabulary,
    before: &[u32],
    first_token: u32,
) -> Box<dyn Decoding> {
    match &job.after {
        Some(after) => Box::new(after::NumberAfterText::new(job, after, vocabulary, (before, first_token))),
        None => {
            let row = PathRow::new(None, first_token);
            search(
                &job.method,
                vocabulary,
                rules(job, vocabulary),
                (Root { row, state: NumberState::START }, 0),
            )
        }
    }
}

/// What a job reads as a number. Costs a pass over the vocabulary where it has terminators or separators of its own.
fn rules(job: &NumberJob, vocabulary: &Vocabulary) -> NumberRules {
    vocabulary.grammar.rules(job.limits, job.terminator.clone(), job.range)
}

/// Starts a search at a root. The number beside it tells apart the random numbers of several searches of one request.
fn search(
    method: &NumberMethod,
    vocabulary: &Vocabulary,
    rules: NumberRules,
    (root, stream): (Root, u64),
) -> Box<dyn Decoding> {
    match method {
        NumberMethod::Tree { tolerance, nodes_max, precision } => {
            let (tolerance, nodes_max, precision) = (*tolerance, *nodes_max, precision.clone());
            let limits = tree::TreeLimits { tolerance, nodes_max, precision };
            Box::new(tree::NumberTree::new(vocabulary, rules, limits, root))
        }
        NumberMethod::Sample { samples, seed } => Box::new(sample::NumberSample::new(
            Arc::clone(&vocabulary.grammar),
            rules,
            (*samples, *seed, stream),
            root,
        )),
        NumberMethod::Beam { beams } => Box::new(beam::NumberBeam::new(vocabulary, rules, *beams, root)),
        NumberMethod::Token => Box::new(token::TokenExpectation::new(vocabulary, rules, root)),
    }
}

//! Searches for the distribution of the number that a model would write.
//!
//! Each starts at a [`Root`] and ends with one `Event::Number`. [`tree`] is exact, [`sample`] and [`beam`]
//! see a part of the distribution, [`anytime`] samples what a tree leaves open, [`token`] is a diagnostic;
//! [`after`] writes text before the number.

mod after;
mod anytime;
mod beam;
mod rationales;
mod refused;
mod sample;
mod sought;
mod token;
mod tree;

pub(super) use token::expectation;

use std::sync::Arc;

pub use rationales::{Rationale, average_rationales};

use super::{Decoding, Vocabulary};
use crate::contract::{FieldsJob, LogitsRequest, NumberJob, NumberMethod, PathRow, Precision};
use crate::numbers::{
    Estimation, GrammarLimits, ListedValues, NumberGrammar, NumberRules, NumberState, NumberValues,
    Terminator,
};

#[derive(Debug, Clone)]
struct Root {
    /// The row that predicts the number's first token.
    row: PathRow,
    /// The part of the number that has been written.
    state: NumberState,
    /// Whether another engine reports the probabilities of requested ids, so that a request for all of them
    /// is of little use.
    is_reported: bool,
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
            let row = PathRow::new(None, first_token);
            let root = Root { row, state: vocabulary.grammar.start(), is_reported: false };
            search(job, vocabulary, rules(job, vocabulary), root, 0)
        }
    }
}

/// Searches the number after a text that another engine has written, in the reports of that engine. `begun`
/// is the part of the text after the marker. Returns `None` if no number begins with it.
pub(super) fn reported_search(
    job: &NumberJob,
    vocabulary: &Vocabulary,
    begun: &str,
    stream: u64,
) -> Option<Box<dyn Decoding>> {
    let rules = rules(job, vocabulary);
    let state = rules.state_after(begun)?;
    let root = Root { row: PathRow::new(None, 0), state, is_reported: true };
    Some(search(job, vocabulary, rules, root, stream))
}

/// The rules of numbers in JSON, without a schema. Costs a pass over the vocabulary.
pub(super) fn json_rules(vocabulary: &Vocabulary, limits: GrammarLimits) -> NumberRules {
    vocabulary.grammar.rules(limits.in_json(), Terminator::Json, NumberValues::All)
}

/// The first row of the search of a number in a structured text.
pub(super) struct SearchRow {
    pub(super) row: PathRow,
    /// See [`Root::is_reported`].
    pub(super) is_reported: bool,
    /// Whether a space may precede the number.
    pub(super) may_follow_space: bool,
}

/// Searches a number of a structured text in at most `nodes_max` nodes.
pub(super) fn field_search(
    job: &FieldsJob,
    vocabulary: &Vocabulary,
    rules: NumberRules,
    estimation: Estimation,
    first: SearchRow,
    nodes_max: usize,
) -> Box<dyn Decoding> {
    let FieldsJob { tolerance, objective, time_max, .. } = *job;
    let precision = job.precision.map(|width| Precision { width, objectives: vec![objective], estimation });
    // The text has a number in any case, so the search must resolve even a small mass of numbers.
    let limits = tree::TreeLimits {
        tolerance,
        is_conditional: true,
        open_min: tree::ROUNDING,
        nodes_max,
        search_nodes_max: nodes_max,
        precision,
        time_max,
    };
    let SearchRow { row, is_reported, may_follow_space } = first;
    let state = if may_follow_space { NumberState::START } else { NumberState::AFTER_SPACE };
    let root = Root { row, state, is_reported };
    let tree = tree::NumberTree::new(vocabulary, rules, limits, root);
    Box::new(if job.mass_min > 0.0 { tree.reporting_refused(vocabulary) } else { tree })
}

/// Searches one of the values that a schema lists for a place of a structured text, in at most `nodes_max`
/// nodes.
pub(super) fn listed_search(
    job: &FieldsJob,
    vocabulary: &Vocabulary,
    values: &ListedValues,
    first: SearchRow,
    nodes_max: usize,
) -> Box<dyn Decoding> {
    let SearchRow { row, is_reported, may_follow_space } = first;
    let grammar = NumberGrammar::of_listed(values, may_follow_space, &vocabulary.eos_ids);
    let rules = grammar.rules(job.limits, Terminator::Json, NumberValues::All);
    let vocabulary = Vocabulary { grammar: Arc::new(grammar), ..vocabulary.clone() };
    let limits = tree::TreeLimits {
        tolerance: job.tolerance,
        is_conditional: true,
        // The beginnings of listed values are few, and the text has one of the values even if the model
        // hardly writes any.
        open_min: 0.0,
        nodes_max,
        search_nodes_max: nodes_max,
        precision: None,
        time_max: job.time_max,
    };
    let root = Root { row, state: vocabulary.grammar.start(), is_reported };
    Box::new(tree::NumberTree::new(&vocabulary, rules, limits, root))
}

/// Costs a pass over the vocabulary if the job has terminators or thousands separators.
fn rules(job: &NumberJob, vocabulary: &Vocabulary) -> NumberRules {
    let rules = vocabulary.grammar.rules(job.limits, job.terminator.clone(), job.values);
    rules.masked(job.is_masked)
}

/// Returns the logits that a search needs.
fn logits_request(vocabulary: &Vocabulary, rules: &NumberRules, root: &Root) -> LogitsRequest {
    if root.is_reported {
        LogitsRequest::Ids(vocabulary.grammar.distinct_ids(rules))
    } else if vocabulary.grammar.reads_all_ids() {
        LogitsRequest::All
    } else {
        LogitsRequest::Ids(Arc::clone(rules.read_ids()))
    }
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
            let time_max = job.time_max;
            let search_nodes_max = job.open_draws.map_or(nodes_max, |open| open.search_nodes_max);
            let limits = tree::TreeLimits {
                tolerance,
                is_conditional,
                open_min: tree::ROUNDING,
                nodes_max,
                search_nodes_max,
                precision,
                time_max,
            };
            let tree = tree::NumberTree::new(vocabulary, rules, limits, root);
            let tree = if job.reports_refused { tree.reporting_refused(vocabulary) } else { tree };
            let Some(open) = job.open_draws else { return Box::new(tree) };
            Box::new(anytime::AnytimeNumber::Searching(Box::new(tree.sampling(open, stream))))
        }
        NumberMethod::Sample { samples, sampling, .. } => {
            Box::new(sample::NumberSample::new(vocabulary, rules, *samples, *sampling, stream, root))
        }
        NumberMethod::Beam { beams } => Box::new(beam::NumberBeam::new(vocabulary, rules, *beams, root)),
        NumberMethod::Token => Box::new(token::TokenExpectation::new(vocabulary, rules, root)),
    }
}

//! The numbers of a structured text: a tree finds the distribution of each, and the text gets the estimate.
//!
//! The model chooses the first token of a number like any other token. The tree begins before that token, so
//! the distribution is conditional on all text before the number. Then the spelling of the estimate replaces
//! the token. Without a usable estimate, the token remains, and the model writes the number.

use std::collections::VecDeque;

use super::super::number::{SearchRow, field_search, json_rules};
use super::super::{Decoding, StepResult, Vocabulary};
use crate::contract::{EngineError, Event, FieldNumber, FieldsJob, NumberOutcome, PathRow};
use crate::guide::{GuideState, NumberField};
use crate::numbers::{AdmittedNumber, NumberRules};

/// The settings that all numbers of a job share.
pub(super) struct FieldRules {
    job: FieldsJob,
    /// Whether another engine reports the probabilities.
    is_reported: bool,
    /// Without a schema.
    rules: NumberRules,
    vocabulary: Vocabulary,
}

/// A number of one text, from its first token to its last.
pub(super) enum FieldStage {
    Searching(FieldSearch),
    /// The text gets these tokens next.
    Spelling {
        ids: VecDeque<u32>,
        number: UnfinishedNumber,
    },
    /// The model writes the rest of the number.
    Continuing(UnfinishedNumber),
}

pub(super) struct FieldSearch {
    tree: Box<dyn Decoding>,
    field: NumberField,
    /// The token that the model has chosen, and whether it begins with a space.
    chosen: u32,
    has_space: bool,
    /// The row before the number.
    row: PathRow,
}

/// A number whose text is not complete.
pub(super) struct UnfinishedNumber {
    field: NumberField,
    first_token: usize,
    value: Option<f64>,
    outcome: NumberOutcome,
}

/// The first token of a number.
pub(super) struct FieldStart {
    pub(super) field: NumberField,
    pub(super) chosen: u32,
    pub(super) has_space: bool,
    /// The row that predicts the token.
    pub(super) row: PathRow,
}

impl FieldRules {
    pub(super) fn new(job: &FieldsJob, vocabulary: &Vocabulary, is_reported: bool) -> Self {
        let rules = json_rules(vocabulary, job.limits);
        Self { job: job.clone(), is_reported, rules, vocabulary: vocabulary.clone() }
    }

    pub(super) fn nodes_max(&self) -> usize {
        self.job.nodes_max
    }

    /// Begins a search with half of the nodes that are left. Its first row is the row before the number.
    pub(super) fn search(&self, start: FieldStart, nodes_left: usize) -> FieldSearch {
        let FieldStart { field, chosen, has_space, row } = start;
        let rules = self.rules.for_schema(&field.numbers);
        let estimation = self.job.estimation(&field.numbers);
        let nodes_max = (nodes_left / 2).max(1);
        let first_row = SearchRow {
            row: row.clone(),
            is_reported: self.is_reported,
            may_follow_space: field.may_follow_space,
        };
        let tree = field_search(&self.job, &self.vocabulary, rules, estimation, first_row, nodes_max);
        FieldSearch { tree, field, chosen, has_space, row }
    }

    /// The number in the text, if the distribution has a usable estimate.
    fn written(&self, field: &NumberField, outcome: &NumberOutcome) -> Option<AdmittedNumber> {
        let found = &outcome.distribution;
        let estimation = self.job.estimation(&field.numbers);
        let closed = found.mass().closed;
        if closed <= 0.0 || closed < self.job.mass_min {
            return None;
        }
        let estimate = found.bounded_estimate(self.job.objective, &estimation)?;
        field.numbers.nearest(estimate, self.job.decimals)
    }
}

impl FieldSearch {
    pub(super) fn tree(&mut self) -> &mut dyn Decoding {
        &mut *self.tree
    }

    /// Returns the outcome once the tree is complete.
    pub(super) fn advance(&mut self, result: StepResult<'_>) -> Result<Option<NumberOutcome>, EngineError> {
        let mut found = Vec::new();
        self.tree.advance(result, &mut found)?;
        Ok(found.pop().and_then(|event| match event {
            Event::Number(outcome) => Some(outcome),
            _ => None,
        }))
    }

    pub(super) fn bytes(&self) -> usize {
        self.tree.search_bytes()
    }

    /// Returns the next stage, and the row before the number, which the text decodes again.
    pub(super) fn end(
        self,
        outcome: NumberOutcome,
        first_token: usize,
        guide: Option<&mut Box<dyn GuideState>>,
        rules: &FieldRules,
    ) -> (FieldStage, PathRow) {
        let Self { field, chosen, has_space, row, .. } = self;
        let written = rules.written(&field, &outcome);
        let spelling = written.and_then(|number| {
            let space = if has_space { " " } else { "" };
            Some((guide?.spell(&format!("{space}{}", number.text))?, number.value))
        });
        let (ids, value) = match spelling {
            Some((ids, value)) => (ids, Some(value)),
            None => (vec![chosen], None),
        };
        let number = UnfinishedNumber { field, first_token, value, outcome };
        (FieldStage::Spelling { ids: ids.into(), number }, row)
    }
}

impl FieldStage {
    /// Returns the size of its search in memory, in bytes.
    pub(super) fn search_bytes(&self) -> usize {
        match self {
            Self::Searching(search) => search.bytes(),
            Self::Spelling { number, .. } | Self::Continuing(number) => number.outcome.distribution.bytes(),
        }
    }
}

impl UnfinishedNumber {
    /// Returns whether the text has an estimate, which ends the number.
    pub(super) fn is_estimate(&self) -> bool {
        self.value.is_some()
    }

    /// Returns the event of the complete number, whose text ends before the token at `end`.
    pub(super) fn event(self, choice: u32, end: usize) -> Event {
        let Self { field, first_token, value, outcome } = self;
        Event::Field(FieldNumber { choice, field, tokens: first_token..end, value, outcome })
    }
}

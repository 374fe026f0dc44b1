//! The fields of a structured text: a tree finds the distribution of each, and the text gets an estimate: the
//! one of the objective for a number, and the most probable one of listed values.
//!
//! The model chooses the first token of a field like any other token. The tree begins before that token, so
//! the distribution is conditional on all text before the field. Then the spelling of the estimate replaces
//! the token. Without a usable estimate, the token remains, and the model writes the value.

use std::collections::VecDeque;

use super::super::number::{SearchRow, field_search, json_rules, listed_search};
use super::super::{Decoding, StepResult, Vocabulary};
use crate::contract::{EngineError, Event, FieldOutcome, FieldsJob, NumberOutcome, PathRow};
use crate::guide::{FieldValues, GuideState, SchemaField};
use crate::numbers::{NumberRules, SchemaNumbers};

/// The settings that all fields of a job share.
pub(super) struct FieldRules {
    job: FieldsJob,
    /// Whether another engine reports the probabilities.
    is_reported: bool,
    /// Without a schema.
    rules: NumberRules,
    vocabulary: Vocabulary,
}

/// A field of one text, from its first token to its last.
pub(super) enum FieldStage {
    Searching(FieldSearch),
    /// The text gets these tokens next.
    Spelling {
        ids: VecDeque<u32>,
        value: UnfinishedValue,
    },
    /// The model writes the rest of the value.
    Continuing(UnfinishedValue),
}

pub(super) struct FieldSearch {
    tree: Box<dyn Decoding>,
    field: SchemaField,
    /// The token that the model has chosen, and whether it begins with a space.
    chosen: u32,
    has_space: bool,
    /// The row before the field.
    row: PathRow,
}

/// The estimate of a field as the text writes it.
struct WrittenValue {
    value: f64,
    text: String,
}

/// A field whose text is not complete.
pub(super) struct UnfinishedValue {
    field: SchemaField,
    first_token: usize,
    value: Option<f64>,
    outcome: NumberOutcome,
}

/// The first token of a field.
pub(super) struct FieldStart {
    pub(super) field: SchemaField,
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

    /// Begins a search with half of the nodes that are left. Its first row is the row before the field.
    pub(super) fn search(&self, start: FieldStart, nodes_left: usize) -> FieldSearch {
        let FieldStart { field, chosen, has_space, row } = start;
        let nodes_max = (nodes_left / 2).max(1);
        let first_row = SearchRow {
            row: row.clone(),
            is_reported: self.is_reported,
            may_follow_space: field.may_follow_space,
        };
        let tree = match &field.values {
            FieldValues::Numbers(numbers) => {
                let rules = self.rules.for_schema(numbers);
                let estimation = self.job.estimation(numbers);
                field_search(&self.job, &self.vocabulary, rules, estimation, first_row, nodes_max)
            }
            FieldValues::Listed(values) => {
                listed_search(&self.job, &self.vocabulary, values, first_row, nodes_max)
            }
        };
        FieldSearch { tree, field, chosen, has_space, row }
    }

    /// The value in the text, if the distribution has a usable estimate.
    fn written(&self, field: &SchemaField, outcome: &NumberOutcome) -> Option<WrittenValue> {
        let found = &outcome.distribution;
        let closed = found.mass().closed;
        if closed <= 0.0 || closed < self.job.mass_min {
            return None;
        }
        match &field.values {
            FieldValues::Numbers(numbers) => self.written_number(numbers, outcome),
            FieldValues::Listed(values) => {
                let index = found.mode()?;
                let text = values.texts().get(index as usize)?.clone();
                Some(WrittenValue { value: index, text })
            }
        }
    }

    fn written_number(&self, numbers: &SchemaNumbers, outcome: &NumberOutcome) -> Option<WrittenValue> {
        let estimation = self.job.estimation(numbers);
        let estimate = outcome.distribution.bounded_estimate(self.job.objective, &estimation)?;
        let number = numbers.nearest(estimate, self.job.decimals)?;
        Some(WrittenValue { value: number.value, text: number.text })
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

    /// Returns the next stage, and the row before the field, which the text decodes again.
    pub(super) fn end(
        self,
        outcome: NumberOutcome,
        first_token: usize,
        guide: Option<&mut Box<dyn GuideState>>,
        rules: &FieldRules,
    ) -> (FieldStage, PathRow) {
        let Self { field, chosen, has_space, row, .. } = self;
        let written = rules.written(&field, &outcome);
        let spelling = written.and_then(|written| {
            let text = if has_space { format!(" {}", written.text) } else { written.text };
            let ids = match &field.values {
                FieldValues::Numbers(_) => guide?.spell(&text)?,
                FieldValues::Listed(_) => guide?.spell_value(&text)?,
            };
            Some((ids, written.value))
        });
        let (ids, value) = match spelling {
            Some((ids, value)) => (ids, Some(value)),
            None => (vec![chosen], None),
        };
        let value = UnfinishedValue { field, first_token, value, outcome };
        (FieldStage::Spelling { ids: ids.into(), value }, row)
    }
}

impl FieldStage {
    /// Returns the size of its search in memory, in bytes.
    pub(super) fn search_bytes(&self) -> usize {
        match self {
            Self::Searching(search) => search.bytes(),
            Self::Spelling { value, .. } | Self::Continuing(value) => value.outcome.distribution.bytes(),
        }
    }
}

impl UnfinishedValue {
    /// Returns whether the text has an estimate, which ends the value.
    pub(super) fn is_estimate(&self) -> bool {
        self.value.is_some()
    }

    /// Returns the event of the complete value, whose text ends before the token at `end`.
    pub(super) fn event(self, choice: u32, end: usize) -> Event {
        let Self { field, first_token, value, outcome } = self;
        Event::Field(FieldOutcome { choice, field, tokens: first_token..end, value, outcome })
    }
}

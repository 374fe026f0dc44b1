//! The rows before the first token of a text: one if the prompt was opened as a whole, or a chain with all
//! prompt tokens if their log-probabilities are requested. A step takes as many of them as it has room for.

use super::{Alternatives, LogitsRequest, PathRow, token_text};
use crate::contract::{EngineError, Event, NodeId};
use crate::decoding::{StepResult, Vocabulary};

pub(super) struct PromptRows {
    ids: Vec<u32>,
    /// Number of alternatives reported with each prompt token; `None` reports nothing.
    logprobs: Option<usize>,
    /// Number of rows stepped so far. It is also the next row's node, since the context has no other nodes
    /// yet.
    stepped: usize,
    in_step: usize,
}

impl PromptRows {
    /// Returns the rows for a prompt that was opened as a whole.
    pub(super) fn opened(first_token: u32) -> Self {
        Self { ids: vec![first_token], logprobs: None, stepped: 0, in_step: 0 }
    }

    /// Returns the rows for a prompt of which only the first token was opened.
    pub(super) fn scored(ids: &[u32], logprobs: usize) -> Self {
        Self { ids: ids.to_vec(), logprobs: Some(logprobs), stepped: 0, in_step: 0 }
    }

    /// `first`: the logits that the first tokens of the texts need; prompt log-probabilities need all.
    pub(super) fn next_rows(&mut self, rows_max: usize, first: LogitsRequest) -> Vec<PathRow> {
        self.in_step = rows_max.min(self.ids.len() - self.stepped);
        let logits = if self.logprobs.is_some() { LogitsRequest::All } else { first };
        let rows = self.stepped..self.stepped + self.in_step;
        rows.map(|row| self.row(row).with_logits(logits.clone())).collect()
    }

    fn row(&self, row: usize) -> PathRow {
        let parent = row.checked_sub(1).map(|parent| NodeId(parent as u32));
        PathRow::new(parent, self.ids[row])
    }

    /// Returns the log-probabilities of the prompt tokens that follow the rows of this step.
    pub(super) fn report(
        &self,
        vocabulary: &Vocabulary,
        result: StepResult<'_>,
    ) -> Result<Option<Event>, EngineError> {
        let Some(count) = self.logprobs else { return Ok(None) };
        let next = self.ids[self.stepped..].iter().skip(1).take(self.in_step);
        let mut tokens = Vec::with_capacity(self.in_step);
        for (row, &id) in next.enumerate() {
            tokens.push(token_text(vocabulary, result.row(row), id, Alternatives::Best(count))?);
        }
        Ok((!tokens.is_empty()).then_some(Event::Prompt(tokens)))
    }

    /// Returns the last row with its result, once it has been stepped.
    pub(super) fn advance<'a>(&mut self, result: StepResult<'a>) -> Option<(PathRow, StepResult<'a>)> {
        self.stepped += self.in_step;
        let is_last = self.stepped == self.ids.len();
        is_last.then(|| (self.row(self.stepped - 1), result.after_rows(self.in_step - 1)))
    }
}

//! The rows before the first token of a text: one where the prompt is opened as a whole, or the whole prompt as a chain
//! of rows where each of its tokens is to be scored. A step takes as many of them as it has room for.

use super::{LogitsRequest, PathRow, RowResult, token_text};
use crate::decoding::{StepResult, Vocabulary};
use crate::engine::{EngineError, Event, NodeId};

/// A chain of rows, stepped from the front.
pub(super) struct PromptRows {
    ids: Vec<u32>,
    /// Alternatives that are reported with each token; `None` reports nothing.
    logprobs: Option<usize>,
    /// Rows that are stepped; the next one becomes the node of this number, since nothing else is in the context yet.
    stepped: usize,
    in_step: usize,
}

impl PromptRows {
    /// Behind a prompt that was opened, but for its last token or a decoder's first.
    pub(super) fn opened(first_token: u32) -> Self {
        Self { ids: vec![first_token], logprobs: None, stepped: 0, in_step: 0 }
    }

    /// A prompt of which only the first token was opened.
    pub(super) fn scored(ids: &[u32], logprobs: usize) -> Self {
        Self { ids: ids.to_vec(), logprobs: Some(logprobs), stepped: 0, in_step: 0 }
    }

    /// `first`: what is to be known for the first tokens of texts; log-probabilities need more.
    pub(super) fn next_rows(&mut self, rows_max: usize, first: LogitsRequest) -> Vec<PathRow> {
        self.in_step = rows_max.min(self.ids.len() - self.stepped);
        let logits = if self.logprobs.is_some() { LogitsRequest::All } else { first };
        let row = |row: usize| {
            let parent = row.checked_sub(1).map(|parent| NodeId(parent as u32));
            PathRow::new(parent, self.ids[row]).with_logits(logits.clone())
        };
        (self.stepped..self.stepped + self.in_step).map(row).collect()
    }

    /// What the rows of this step say of the tokens behind them.
    pub(super) fn report(
        &self,
        vocabulary: &Vocabulary,
        result: StepResult<'_>,
    ) -> Result<Option<Event>, EngineError> {
        let Some(count) = self.logprobs else { return Ok(None) };
        let next = self.ids[self.stepped..].iter().skip(1).take(self.in_step);
        let report = |(row, &id): (usize, &u32)| token_text(vocabulary, result.row(row), id, count);
        let tokens = next.enumerate().map(report).collect::<Result<Vec<_>, _>>()?;
        Ok((!tokens.is_empty()).then_some(Event::Prompt(tokens)))
    }

    /// Goes on behind this step's rows; the last row of all once it is there.
    pub(super) fn advance<'a>(&mut self, result: StepResult<'a>) -> Option<RowResult<'a>> {
        self.stepped += self.in_step;
        (self.stepped == self.ids.len()).then(|| result.row(self.in_step - 1))
    }
}

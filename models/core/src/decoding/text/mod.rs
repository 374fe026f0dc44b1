//! Text: one chain of rows for each text, greedy or sampled.
//!
//! [`path`] is one text, [`prompt`] the rows before the first token, [`report`] the log-probabilities of a
//! token.

mod path;
mod prompt;
mod report;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use path::{Path, Rules};
use prompt::PromptRows;
use report::{Alternatives, token_text};

use super::{Decoding, Progress, RowResult, StepResult, Vocabulary, check_row, not_a_distribution};
use crate::contract::{EngineError, Event, LogitsRequest, PathRow, TextJob};

/// Decodes `n` texts under one context. They share the first row.
pub struct TextDecoding {
    paths: Vec<Path>,
    rules: Rules,
    /// The rows before the first token, until they are stepped.
    prompt: Option<PromptRows>,
    /// Paths with a row in the present step.
    in_step: Vec<usize>,
    n: usize,
    logprobs: Option<usize>,
    /// Ids that are reported instead of the most probable ones, unless the list is empty.
    logprob_ids: Arc<[u32]>,
    vocabulary: Vocabulary,
}

impl TextDecoding {
    /// `before`: the ids before the texts in the same sequence.
    pub(super) fn new(job: &TextJob, vocabulary: &Vocabulary, before: &[u32], first_token: u32) -> Self {
        let rules = Rules::new(job, vocabulary);
        let prompt = match job.prompt_logprobs {
            Some(count) if !before.is_empty() => PromptRows::scored(before, count),
            _ => PromptRows::opened(first_token),
        };
        Self {
            paths: (0..job.paths()).map(|path| Path::new(path, job, vocabulary, before)).collect(),
            rules,
            prompt: Some(prompt),
            in_step: Vec::new(),
            n: job.n as usize,
            logprobs: job.logprobs,
            logprob_ids: Arc::clone(&job.logprob_ids),
            vocabulary: vocabulary.clone(),
        }
    }

    /// Returns whether the best of more texts are returned.
    fn ranks_texts(&self) -> bool {
        self.paths.len() > self.n
    }

    /// Returns the logits that the text at `index` needs. The most probable id is enough if nothing else is
    /// reported.
    fn logits_request(&self, index: usize) -> LogitsRequest {
        let silent = self.logprobs.is_none() && !self.ranks_texts();
        let takes_best = self.paths.get(index).is_some_and(|path| path.takes_best(&self.rules));
        if silent && takes_best { LogitsRequest::Best } else { LogitsRequest::All }
    }

    fn extend(
        &mut self,
        index: usize,
        row: RowResult<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let ranks_texts = self.ranks_texts();
        let request = self.logits_request(index);
        let path = &mut self.paths[index];
        let mut own = Vec::new();
        if self.rules.max_tokens == 0 {
            path.end_at_once(&mut own);
        } else if request == LogitsRequest::Best {
            let id = self.vocabulary.best(row.logits)?;
            path.take(id, row, None, &self.rules, &mut own)?;
        } else {
            let logits = row.full()?;
            check_row(logits)?;
            let id = path.choose(self.vocabulary.known(logits), &self.rules)?;
            let count = self.logprobs.or(ranks_texts.then_some(0));
            let others = |count| match &*self.logprob_ids {
                [] => Alternatives::Best(count),
                ids => Alternatives::Ids(ids),
            };
            let token =
                count.map(|count| token_text(&self.vocabulary, row, id, others(count))).transpose()?;
            path.logprob += token.as_ref().map_or(0.0, |token| token.token.logprob);
            let token = token.filter(|_| self.logprobs.is_some());
            path.take(id, row, token, &self.rules, &mut own)?;
        }
        // The best texts are known only at the end.
        if ranks_texts {
            path.kept.append(&mut own)
        } else {
            events.append(&mut own)
        }
        Ok(())
    }

    /// Sends the events of all texts, the most probable one as choice 0. From choice `n` on, it sends only
    /// the finish events.
    fn send_ranked(&mut self, events: &mut Vec<Event>) {
        self.paths
            .sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()).then(a.number.cmp(&b.number)));
        for (rank, path) in (0u32..).zip(&mut self.paths) {
            for mut event in std::mem::take(&mut path.kept) {
                match &mut event {
                    Event::Text { choice, tokens, .. } => (*choice, *tokens) = (rank, 0),
                    Event::Finished { choice, .. } => *choice = rank,
                    _ => {}
                }
                if (rank as usize) < self.n || matches!(event, Event::Finished { .. }) {
                    events.push(event);
                }
            }
        }
    }

    /// Reads rows of the prompt. All texts begin after the last one.
    fn advance_prompt(
        &mut self,
        mut prompt: PromptRows,
        result: StepResult<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        events.extend(prompt.report(&self.vocabulary, result)?);
        match prompt.advance(result) {
            Some(last) => (0..self.paths.len()).try_for_each(|path| self.extend(path, last, events)),
            None => {
                self.prompt = Some(prompt);
                Ok(())
            }
        }
    }
}

impl Decoding for TextDecoding {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        // All paths share the first row.
        let first = self.logits_request(0);
        if let Some(prompt) = &mut self.prompt {
            return prompt.next_rows(rows_max, first);
        }
        self.in_step = (0..self.paths.len()).filter(|&path| self.paths[path].next.is_some()).collect();
        // Paths with the fewest tokens are first, so that small steps starve no path.
        self.in_step.sort_by_key(|&path| self.paths[path].decoded);
        self.in_step.truncate(rows_max);
        let row = |&path: &usize| Some(self.paths[path].next.clone()?.with_logits(self.logits_request(path)));
        self.in_step.iter().filter_map(row).collect()
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        if let Some(prompt) = self.prompt.take() {
            self.advance_prompt(prompt, result, events)?;
        }
        for (row, path) in std::mem::take(&mut self.in_step).into_iter().enumerate() {
            self.extend(path, result.row(row), events)?;
        }
        if self.prompt.is_some() || !self.paths.iter().all(|path| path.finished) {
            return Ok(Progress::Running);
        }
        if self.ranks_texts() {
            self.send_ranked(events);
        }
        Ok(Progress::Done)
    }
}

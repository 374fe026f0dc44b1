//! Text: one chain of rows for each text, greedy or sampled.
//!
//! [`path`] is one text, [`prompt`] the rows before the first token, [`report`] the log-probabilities of a
//! token, [`field`] a number of a structured text, [`reported`] a structured text that another engine writes.

mod field;
#[cfg(test)]
mod field_tests;
mod path;
mod prompt;
mod report;
mod reported;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use path::{Path, Rules};
use prompt::PromptRows;
use report::{Alternatives, token_text};

pub use reported::{ReportedText, TextNeed};

use super::{Decoding, Progress, RowResult, StepResult, Vocabulary, check_row, not_a_distribution};
use crate::contract::{EngineError, Event, LogitsRequest, PathRow, TextJob};

/// Decodes `n` texts under one context. They share the first row.
pub struct TextDecoding {
    paths: Vec<Path>,
    rules: Rules,
    /// The rows before the first token, until they are stepped.
    prompt: Option<PromptRows>,
    /// Rows of paths in the present step.
    in_step: Vec<RowsOfPath>,
    n: usize,
    logprobs: Option<usize>,
    /// Ids that are reported instead of the most probable ones, unless the list is empty.
    logprob_ids: Arc<[u32]>,
    vocabulary: Vocabulary,
}

/// Rows of one path in a step.
struct RowsOfPath {
    path: usize,
    rows: usize,
}

impl TextDecoding {
    /// `before`: the ids before the texts in the same sequence.
    pub(super) fn new(job: &TextJob, vocabulary: &Vocabulary, before: &[u32], first_token: u32) -> Self {
        let rules = Rules::new(job, vocabulary, false);
        let prompt = match job.prompt_logprobs {
            Some(count) if !before.is_empty() => PromptRows::scored(before, count),
            _ => PromptRows::opened(first_token),
        };
        Self {
            paths: (0..job.paths()).map(|path| Path::new(path, job, &rules, vocabulary, before)).collect(),
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

    /// Returns the logits that a text needs. The most probable id is enough if nothing else is reported.
    fn logits_request(&self, path: &Path) -> LogitsRequest {
        let silent = self.logprobs.is_none() && !self.ranks_texts();
        if silent && path.takes_best(&self.rules) { LogitsRequest::Best } else { LogitsRequest::All }
    }

    /// Adds the next token to a text, or begins a number. `path_row` is the row of the result.
    fn extend(
        &mut self,
        index: usize,
        path_row: PathRow,
        result: StepResult<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let row = result.row(0);
        let ranks_texts = self.ranks_texts();
        let request = self.logits_request(&self.paths[index]);
        let path = &mut self.paths[index];
        let mut own = Vec::new();
        if self.rules.max_tokens == 0 {
            path.end_at_once(&mut own);
        } else if request == LogitsRequest::Best {
            let id = self.vocabulary.best(row.logits)?;
            path.take(row.token(id), row.node, None, &self.rules, &mut own)?;
        } else {
            let logits = row.full()?;
            check_row(logits)?;
            let id = path.choose(self.vocabulary.known(logits), &self.rules)?;
            if let Some(start) = path.field_start(id, path_row, &self.rules) {
                return path.begin_search(start, result, &self.rules);
            }
            let mut token = None;
            if self.logprobs.is_some() || ranks_texts {
                let others = match &*self.logprob_ids {
                    [] => Alternatives::Best(self.logprobs.unwrap_or(0)),
                    ids => Alternatives::Ids(ids),
                };
                let scored = token_text(&self.vocabulary, row, id, others)?;
                path.logprob += scored.token.logprob;
                if self.logprobs.is_some() {
                    token = Some(scored);
                }
            }
            path.take(row.token(id), row.node, token, &self.rules, &mut own)?;
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
                    Event::Field(number) => number.choice = rank,
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
            Some((row, last)) => {
                (0..self.paths.len()).try_for_each(|path| self.extend(path, row.clone(), last, events))
            }
            None => {
                self.prompt = Some(prompt);
                Ok(())
            }
        }
    }
}

impl Decoding for TextDecoding {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        if let Some(mut prompt) = self.prompt.take() {
            // All paths share the first row.
            let first = self.paths.first().map_or(LogitsRequest::All, |path| self.logits_request(path));
            let rows = prompt.next_rows(rows_max, first);
            self.prompt = Some(prompt);
            return rows;
        }
        let mut running = Vec::new();
        for (index, path) in self.paths.iter().enumerate() {
            if path.next.is_some() || path.is_searching() {
                running.push(index);
            }
        }
        // Paths with the fewest tokens are first, so that small steps starve no path.
        running.sort_by_key(|&path| self.paths[path].decoded);
        let mut rows = Vec::new();
        self.in_step.clear();
        for index in running {
            let left = rows_max - rows.len();
            if left == 0 {
                break;
            }
            let request = self.logits_request(&self.paths[index]);
            let own = self.paths[index].next_rows(left, request);
            self.in_step.push(RowsOfPath { path: index, rows: own.len() });
            rows.extend(own);
        }
        rows
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        if let Some(prompt) = self.prompt.take() {
            self.advance_prompt(prompt, result, events)?;
        }
        let mut offset = 0;
        for RowsOfPath { path: index, rows } in std::mem::take(&mut self.in_step) {
            let own = result.after_rows(offset);
            offset += rows;
            let path = &mut self.paths[index];
            match path.next.clone() {
                Some(row) if !path.is_searching() => self.extend(index, row, own, events)?,
                _ => path.advance_search(own, &self.rules)?,
            }
        }
        if self.prompt.is_some() || !self.paths.iter().all(|path| path.finished) {
            return Ok(Progress::Running);
        }
        if self.ranks_texts() {
            self.send_ranked(events);
        }
        Ok(Progress::Done)
    }

    fn search_bytes(&self) -> usize {
        self.paths.iter().map(Path::search_bytes).sum()
    }
}

//! Text paths: one chain of rows per wanted text, greedy or sampled, until each one ends.

use std::sync::Arc;

use super::beams::best_ids;
use super::{Decoding, Progress, StepResult, Vocabulary, check_row, not_a_distribution};
use crate::engine::{EngineError, Event, FinishReason, NodeId, PathRow, TextJob, TokenLogprob, TokenText};
use crate::numbers::Softmax;
use crate::sampling::Sampler;
use crate::text::TextStream;

/// Decodes `n` texts under one context. They share the first row.
pub struct TextDecoding {
    paths: Vec<Path>,
    /// Paths whose rows are in the step that is being computed; empty means that it is the shared first row.
    in_step: Vec<usize>,
    first_token: u32,
    max_tokens: usize,
    logprobs: Option<usize>,
    vocabulary: Vocabulary,
}

struct Path {
    choice: u32,
    stream: TextStream,
    sampler: Sampler,
    decoded: usize,
    /// The row to compute next; `None` before the first and after the last token.
    next: Option<PathRow>,
    finished: bool,
}

/// What a model says at one row.
#[derive(Clone, Copy)]
struct Computed<'a> {
    logits: &'a [f32],
    node: NodeId,
    /// What its number head says, where it has one.
    number: Option<f32>,
}

impl<'a> Computed<'a> {
    fn new(result: StepResult<'a>, row: usize) -> Self {
        let (logits, node) = result.row(row);
        Self { logits, node, number: result.number(row) }
    }
}

impl TextDecoding {
    pub(super) fn new(job: &TextJob, vocabulary: &Vocabulary, first_token: u32) -> Self {
        let stop: Arc<[String]> = job.stop.clone().into();
        let path = |choice| Path {
            choice,
            stream: TextStream::new(Arc::clone(&vocabulary.decoder), Arc::clone(&stop)),
            sampler: Sampler::new(job.sampling, u64::from(choice)),
            decoded: 0,
            next: None,
            finished: false,
        };
        Self {
            paths: (0..job.n).map(path).collect(),
            in_step: Vec::new(),
            first_token,
            max_tokens: job.max_tokens,
            logprobs: job.logprobs,
            vocabulary: vocabulary.clone(),
        }
    }

    fn extend(&mut self, path: usize, row: Computed<'_>, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let Computed { logits, node, number } = row;
        if self.max_tokens == 0 {
            self.paths[path].finish(FinishReason::Length, events);
            return Ok(());
        }
        check_row(logits)?;
        let id = self.paths[path].sampler.choose(self.vocabulary.known(logits)) as u32;
        let token = self.logprobs.map(|count| self.token_text(row, id, count)).transpose()?;
        let (path, ends) = (&mut self.paths[path], self.vocabulary.eos_ids.contains(&id));
        path.decoded += 1;
        let text = if ends { String::new() } else { path.stream.push_numbered(id, number) };
        events.push(Event::Text { choice: path.choice, text, token });
        if ends || path.stream.stopped() {
            path.finish(FinishReason::Stop, events);
        } else if path.decoded >= self.max_tokens {
            path.finish(FinishReason::Length, events);
        } else {
            path.next = Some(PathRow::new(Some(node), id));
        }
        Ok(())
    }

    /// What is reported of a decoded token, with `count` alternatives.
    fn token_text(&self, row: Computed<'_>, id: u32, count: usize) -> Result<TokenText, EngineError> {
        let Computed { logits, number: head, .. } = row;
        let known = self.vocabulary.known(logits);
        let softmax = Softmax::new(logits).ok_or_else(not_a_distribution)?;
        let logprob = |id| TokenLogprob { id, logprob: softmax.log_probability(id) };
        let ids = best_ids(known, count);
        let number = self.vocabulary.number_at(&softmax, head);
        Ok(TokenText { token: logprob(id), top: ids.into_iter().map(logprob).collect(), number })
    }
}

impl Path {
    fn finish(&mut self, reason: FinishReason, events: &mut Vec<Event>) {
        let rest = self.stream.finish();
        if !rest.is_empty() {
            events.push(Event::Text { choice: self.choice, text: rest, token: None });
        }
        let (choice, tokens) = (self.choice, self.decoded);
        events.push(Event::Finished { choice, reason, tokens, cumulative_logprob: None });
        self.next = None;
        self.finished = true;
    }
}

impl Decoding for TextDecoding {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        self.in_step = (0..self.paths.len()).filter(|&path| self.paths[path].next.is_some()).collect();
        // Paths that have waited longest go first, so that a small step starves none.
        self.in_step.sort_by_key(|&path| self.paths[path].decoded);
        self.in_step.truncate(rows_max);
        if self.in_step.is_empty() {
            return vec![PathRow::new(None, self.first_token)];
        }
        self.in_step.iter().filter_map(|&path| self.paths[path].next).collect()
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        let in_step = std::mem::take(&mut self.in_step);
        if in_step.is_empty() {
            for path in 0..self.paths.len() {
                self.extend(path, Computed::new(result, 0), events)?;
            }
        }
        for (row, path) in in_step.into_iter().enumerate() {
            self.extend(path, Computed::new(result, row), events)?;
        }
        let done = self.paths.iter().all(|path| path.finished);
        Ok(if done { Progress::Done } else { Progress::Running })
    }
}

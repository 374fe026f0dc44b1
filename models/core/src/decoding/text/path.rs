//! One text: choosing its next token, and ending it.

use std::sync::Arc;

use super::{PathRow, not_a_distribution};
use crate::Token;
use crate::contract::{EngineError, Event, FinishReason, TextJob, TokenText};
use crate::decoding::{RowResult, Vocabulary};
use crate::sampling::{GuideError, GuideState, Sampler};
use crate::text::{TextStream, with_special};

/// The settings that all texts of a job share.
pub(super) struct Rules {
    pub(super) max_tokens: usize,
    min_tokens: usize,
    logit_bias: Arc<[(u32, f32)]>,
    /// Ids that end a text: the job's ids, and the end of sequence unless it is ignored.
    ends: Vec<u32>,
    /// Whether the id that ends a text is part of it.
    include_stop: bool,
}

impl Rules {
    pub(super) fn new(job: &TextJob, vocabulary: &Vocabulary) -> Self {
        let eos = vocabulary.eos_ids.iter().filter(|_| !job.ignore_eos);
        Self {
            max_tokens: job.max_tokens,
            min_tokens: job.min_tokens,
            logit_bias: Arc::clone(&job.logit_bias),
            ends: eos.chain(&job.stop_token_ids).copied().collect(),
            include_stop: job.include_stop,
        }
    }
}

/// One text.
pub(super) struct Path {
    /// Index among the job's texts, and the stream of its random numbers.
    pub(super) number: u32,
    pub(super) decoded: usize,
    /// The row to compute next; `None` before the first and after the last token.
    pub(super) next: Option<PathRow>,
    pub(super) finished: bool,
    /// Sum of the tokens' log-probabilities, if the best of several texts are returned.
    pub(super) logprob: f64,
    /// Events that are sent when the best texts are known.
    pub(super) kept: Vec<Event>,
    stream: TextStream,
    sampler: Sampler,
    guide: Option<Box<dyn GuideState>>,
}

impl Path {
    pub(super) fn new(number: u32, job: &TextJob, vocabulary: &Vocabulary, before: &[u32]) -> Self {
        let stop: Arc<[String]> = job.stop.clone().into();
        let decoder = with_special(&vocabulary.decoder, &job.shown_ids);
        let stream =
            TextStream::new(decoder, stop).stopping(job.include_stop, job.min_tokens).after_prompt(before);
        Self {
            number,
            decoded: 0,
            next: None,
            finished: false,
            logprob: 0.0,
            kept: Vec::new(),
            stream,
            sampler: Sampler::new(job.sampling, u64::from(number)).after_prompt(before),
            guide: job.guide.as_ref().map(|guide| guide.start()),
        }
    }

    /// Returns whether the next token is the most probable one, so that no other logit is needed.
    pub(super) fn takes_best(&self, rules: &Rules) -> bool {
        let changed = self.guide.is_some() || self.decoded < rules.min_tokens || !rules.logit_bias.is_empty();
        !changed && self.sampler.takes_best()
    }

    /// The next token, in the order of processors that [`crate::sampling`] describes.
    pub(super) fn choose(&mut self, logits: &[f32], rules: &Rules) -> Result<u32, EngineError> {
        let ends_banned = self.decoded < rules.min_tokens;
        if self.guide.is_none() && !ends_banned && rules.logit_bias.is_empty() {
            return self.sampler.choose(logits).ok_or_else(not_a_distribution);
        }
        let mut logits = logits.to_vec();
        if let Some(guide) = &mut self.guide {
            guide.restrict(&mut logits)?;
        }
        let mut change = |id: u32, by: f32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += by;
            }
        };
        for &id in rules.ends.iter().filter(|_| ends_banned) {
            change(id, f32::NEG_INFINITY);
        }
        for &(id, bias) in &*rules.logit_bias {
            change(id, bias);
        }
        self.sampler
            .choose(&logits)
            .ok_or_else(|| EngineError::Guide(GuideError("no token of the vocabulary can follow".to_owned())))
    }

    /// Adds a token that was chosen from `row`, and ends the text if a rule says so.
    pub(super) fn take(
        &mut self,
        id: u32,
        row: RowResult<'_>,
        token: Option<TokenText>,
        rules: &Rules,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        self.decoded += 1;
        let ends = rules.ends.contains(&id);
        if let Some(guide) = &mut self.guide {
            guide.accept(id)?;
        }
        let (text, offset) = if ends && !rules.include_stop {
            (String::new(), self.stream.end_offset())
        } else {
            let text = self.stream.push(Token { id, value: row.head_value });
            (text, self.stream.token_offset())
        };
        events.push(Event::Text { choice: self.number, text, tokens: 1, token, offset });
        let complete = self.guide.as_mut().is_some_and(|guide| guide.is_complete());
        if ends || complete || self.stream.stopped() {
            self.finish(FinishReason::Stop, events);
        } else if self.decoded >= rules.max_tokens {
            self.finish(FinishReason::Length, events);
        } else {
            self.next = Some(PathRow::new(Some(row.node), id));
        }
        Ok(())
    }

    /// Ends a text of `max_tokens` 0.
    pub(super) fn end_at_once(&mut self, events: &mut Vec<Event>) {
        self.finish(FinishReason::Length, events);
    }

    pub(super) fn mean_logprob(&self) -> f64 {
        self.logprob / self.decoded.max(1) as f64
    }

    fn finish(&mut self, reason: FinishReason, events: &mut Vec<Event>) {
        let rest = self.stream.finish();
        if !rest.is_empty() {
            let offset = self.stream.end_offset();
            events.push(Event::Text { choice: self.number, text: rest, tokens: 0, token: None, offset });
        }
        let choice = self.number;
        let tokens = self.decoded;
        events.push(Event::Finished { choice, reason, tokens, cumulative_logprob: None });
        self.next = None;
        self.finished = true;
    }
}

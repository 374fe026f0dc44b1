//! One text: choosing its next token, and ending it.

use std::sync::Arc;

use super::field::{FieldRules, FieldStage, FieldStart};
use super::{PathRow, not_a_distribution};
use crate::Token;
use crate::contract::{
    EngineError, Event, FinishReason, LogitsRequest, NodeId, NumberOutcome, StopReason, TextJob, TokenText,
};
use crate::decoding::{Decoding, StepResult, Vocabulary};
use crate::guide::{FieldEffect, GuideError, GuideState};
use crate::sampling::Sampler;
use crate::text::{TextStream, with_special};

/// The settings that all texts of a job share.
pub(super) struct Rules {
    pub(super) max_tokens: usize,
    min_tokens: usize,
    logit_bias: Arc<[(u32, f32)]>,
    /// Ids that end a text: the end of sequence unless it is ignored, and the job's ids.
    ends: Vec<u32>,
    /// How many of `ends`, the first ones, are an end of sequence.
    eos: usize,
    /// Whether the id that ends a text is part of it.
    include_stop: bool,
    /// If the fields of a structured text are estimates.
    fields: Option<FieldRules>,
}

impl Rules {
    /// `is_reported`: whether another engine reports the probabilities.
    pub(super) fn new(job: &TextJob, vocabulary: &Vocabulary, is_reported: bool) -> Self {
        let eos = if job.ignore_eos { &[] } else { &*vocabulary.eos_ids };
        Self {
            max_tokens: job.max_tokens,
            min_tokens: job.min_tokens,
            logit_bias: Arc::clone(&job.logit_bias),
            ends: [eos, &job.stop_token_ids].concat(),
            eos: eos.len(),
            include_stop: job.include_stop,
            fields: job.fields.as_ref().map(|fields| FieldRules::new(fields, vocabulary, is_reported)),
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
    /// The field of a structured text that it is at.
    field: Option<FieldStage>,
    /// Number of decoder positions that further fields may use.
    field_nodes_left: usize,
}

impl Path {
    pub(super) fn new(
        number: u32,
        job: &TextJob,
        rules: &Rules,
        vocabulary: &Vocabulary,
        before: &[u32],
    ) -> Self {
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
            field: None,
            field_nodes_left: rules.fields.as_ref().map_or(0, FieldRules::nodes_max),
        }
    }

    /// Returns the rows that it needs next, at most `rows_max`. `logits` is the request for the next token.
    pub(super) fn next_rows(&mut self, rows_max: usize, logits: LogitsRequest) -> Vec<PathRow> {
        if let Some(search) = self.search() {
            return search.next_rows(rows_max);
        }
        self.next.clone().map(|next| next.with_logits(logits)).into_iter().collect()
    }

    pub(super) fn is_searching(&self) -> bool {
        matches!(self.field, Some(FieldStage::Searching(_)))
    }

    /// Returns the memory on the host for the search of a field, in bytes.
    pub(super) fn search_bytes(&self) -> usize {
        self.field.as_ref().map_or(0, FieldStage::search_bytes)
    }

    /// Returns the field of a structured text that begins with the token `id`. `row` is the row that
    /// predicts the token.
    pub(super) fn field_start(&mut self, id: u32, row: PathRow, rules: &Rules) -> Option<FieldStart> {
        if rules.fields.is_none() || self.field.is_some() {
            return None;
        }
        let guide = self.guide.as_mut()?;
        match guide.field_effect(id) {
            FieldEffect::Begins { mut field, has_space } => {
                guide.narrow(&mut field);
                (!field.values.is_settled()).then_some(FieldStart { field, chosen: id, has_space, row })
            }
            FieldEffect::None | FieldEffect::BeginsInside | FieldEffect::Continues => None,
        }
    }

    /// Begins the search of a field. `result` is the result of the row before it.
    pub(super) fn begin_search(
        &mut self,
        start: FieldStart,
        result: StepResult<'_>,
        rules: &Rules,
    ) -> Result<(), EngineError> {
        self.begin_reported_search(start, rules);
        if let Some(search) = self.search() {
            search.next_rows(1);
        }
        self.advance_search(result, rules)
    }

    /// Begins the search of a field whose first row has no result yet.
    pub(super) fn begin_reported_search(&mut self, start: FieldStart, rules: &Rules) {
        if let Some(fields) = &rules.fields {
            self.next = None;
            self.field = Some(FieldStage::Searching(fields.search(start, self.field_nodes_left)));
        }
    }

    /// The search of the field that it is at.
    pub(super) fn search(&mut self) -> Option<&mut dyn Decoding> {
        match &mut self.field {
            Some(FieldStage::Searching(search)) => Some(search.tree()),
            Some(FieldStage::Spelling { .. } | FieldStage::Continuing(_)) | None => None,
        }
    }

    /// Continues the search of a field.
    pub(super) fn advance_search(
        &mut self,
        result: StepResult<'_>,
        rules: &Rules,
    ) -> Result<(), EngineError> {
        let Some(FieldStage::Searching(search)) = &mut self.field else { return Ok(()) };
        if let Some(outcome) = search.advance(result)? {
            self.end_search(outcome, rules);
        }
        Ok(())
    }

    /// Ends the search of a field, whose value the text gets next.
    pub(super) fn end_search(&mut self, outcome: NumberOutcome, rules: &Rules) {
        let Some(fields) = &rules.fields else { return };
        self.field_nodes_left = self.field_nodes_left.saturating_sub(outcome.nodes);
        if let Some(FieldStage::Searching(search)) = self.field.take() {
            let (stage, row) = search.end(outcome, self.decoded, self.guide.as_mut(), fields);
            self.field = Some(stage);
            self.next = Some(row);
        }
    }

    /// Sends a field that the model has written itself, unless the token `id` continues it.
    fn end_written_value(&mut self, id: u32, events: &mut Vec<Event>) {
        if !matches!(self.field, Some(FieldStage::Continuing(_))) {
            return;
        }
        let effect = self.guide.as_ref().map(|guide| guide.field_effect(id));
        if effect != Some(FieldEffect::Continues) {
            self.send_written_value(events);
        }
    }

    fn send_written_value(&mut self, events: &mut Vec<Event>) {
        match self.field.take() {
            Some(FieldStage::Continuing(value)) => events.push(value.event(self.number, self.decoded)),
            stage => self.field = stage,
        }
    }

    /// Sends a field whose spelling is complete, unless the model continues it.
    fn end_spelling(&mut self, events: &mut Vec<Event>) {
        match self.field.take() {
            Some(FieldStage::Spelling { ids, value }) if ids.is_empty() && value.is_estimate() => {
                if let Some(guide) = &mut self.guide {
                    guide.end_number();
                }
                events.push(value.event(self.number, self.decoded));
            }
            Some(FieldStage::Spelling { ids, value }) if ids.is_empty() => {
                self.field = Some(FieldStage::Continuing(value));
            }
            stage => self.field = stage,
        }
    }

    /// Returns whether the next token is the most probable one, so that no other logit is needed.
    pub(super) fn takes_best(&self, rules: &Rules) -> bool {
        let changed = self.guide.is_some() || self.decoded < rules.min_tokens || !rules.logit_bias.is_empty();
        !changed && self.sampler.takes_best()
    }

    /// The next token, in the order of processors that [`crate::sampling`] describes.
    pub(super) fn choose(&mut self, logits: &[f32], rules: &Rules) -> Result<u32, EngineError> {
        if let Some(id) = self.spelled() {
            return Ok(id);
        }
        let ends_banned = self.decoded < rules.min_tokens;
        if self.guide.is_none() && !ends_banned && rules.logit_bias.is_empty() {
            return self.sampler.draw(logits).ok_or_else(not_a_distribution);
        }
        let mut logits = logits.to_vec();
        self.restrict(&mut logits, rules)?;
        loop {
            let id = self.sampler.draw(&logits).ok_or_else(nothing_can_follow)?;
            match logits.get_mut(id as usize) {
                Some(logit) if self.begins_inside(id, rules) => *logit = f32::NEG_INFINITY,
                _ => return Ok(id),
            }
        }
    }

    /// Returns the next token of a field whose spelling is known.
    pub(super) fn spelled(&mut self) -> Option<u32> {
        match &mut self.field {
            Some(FieldStage::Spelling { ids, .. }) => ids.pop_front(),
            Some(FieldStage::Searching(_) | FieldStage::Continuing(_)) | None => None,
        }
    }

    /// Changes logits as the guide, `min_tokens` and the biases say.
    fn restrict(&mut self, logits: &mut [f32], rules: &Rules) -> Result<(), EngineError> {
        if let Some(guide) = &mut self.guide {
            guide.restrict(logits)?;
        }
        if self.decoded < rules.min_tokens {
            for &id in &*rules.ends {
                add_bias(logits, id, f32::NEG_INFINITY);
            }
        }
        for &(id, bias) in &*rules.logit_bias {
            add_bias(logits, id, bias);
        }
        Ok(())
    }

    /// Returns whether a field begins inside a token. A tree begins at the end of a token.
    pub(super) fn begins_inside(&self, id: u32, rules: &Rules) -> bool {
        match &self.guide {
            Some(guide) if rules.fields.is_some() => guide.field_effect(id) == FieldEffect::BeginsInside,
            _ => false,
        }
    }

    /// Returns the ids that may come next among `tokens` ids, ascending. A field may begin inside some of
    /// them.
    pub(super) fn allowed(&mut self, tokens: usize, rules: &Rules) -> Result<Vec<u32>, EngineError> {
        let mut logits = vec![0.0; tokens];
        self.restrict(&mut logits, rules)?;
        Ok((0u32..).zip(logits).filter(|(_, logit)| logit.is_finite()).map(|(id, _)| id).collect())
    }

    /// Adds a token that was chosen after `node`, and ends the text if a rule says so. `report`: what the
    /// client gets to know about it.
    pub(super) fn take(
        &mut self,
        token: Token,
        node: NodeId,
        report: Option<TokenText>,
        rules: &Rules,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let id = token.id;
        self.end_written_value(id, events);
        self.decoded += 1;
        self.sampler.generated(id);
        let end = rules.ends.iter().position(|&end| end == id);
        let ends = end.is_some();
        if let Some(guide) = &mut self.guide {
            guide.accept(id)?;
        }
        let (text, offset) = if ends && !rules.include_stop {
            (String::new(), self.stream.end_offset())
        } else {
            let text = self.stream.push(token);
            (text, self.stream.token_offset())
        };
        events.push(Event::Text { choice: self.number, text, tokens: 1, token: report, offset });
        self.end_spelling(events);
        let complete = self.guide.as_mut().is_some_and(|guide| guide.is_complete());
        if complete {
            self.send_written_value(events);
        }
        let text = self.stream.stopped().map(|stop| StopReason::Text(stop.to_owned()));
        let stop_reason = text.or_else(|| end.filter(|&end| end >= rules.eos).map(|_| StopReason::Token(id)));
        if ends || complete || stop_reason.is_some() {
            self.finish(FinishReason::Stop, stop_reason, events);
        } else if self.decoded >= rules.max_tokens {
            self.finish(FinishReason::Length, None, events);
        } else {
            self.next = Some(PathRow::new(Some(node), id));
        }
        Ok(())
    }

    /// Ends a text of `max_tokens` 0.
    pub(super) fn end_at_once(&mut self, events: &mut Vec<Event>) {
        self.finish(FinishReason::Length, None, events);
    }

    pub(super) fn mean_logprob(&self) -> f64 {
        self.logprob / self.decoded.max(1) as f64
    }

    fn finish(&mut self, reason: FinishReason, stop_reason: Option<StopReason>, events: &mut Vec<Event>) {
        let rest = self.stream.finish();
        if !rest.is_empty() {
            let offset = self.stream.end_offset();
            events.push(Event::Text { choice: self.number, text: rest, tokens: 0, token: None, offset });
        }
        let choice = self.number;
        let tokens = self.decoded;
        events.push(Event::Finished { choice, reason, stop_reason, tokens, cumulative_logprob: None });
        self.next = None;
        self.finished = true;
    }
}

fn add_bias(logits: &mut [f32], id: u32, bias: f32) {
    if let Some(logit) = logits.get_mut(id as usize) {
        *logit += bias;
    }
}

pub(super) fn nothing_can_follow() -> EngineError {
    EngineError::Guide(GuideError("no token of the vocabulary can follow".to_owned()))
}

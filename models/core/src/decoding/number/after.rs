//! Writes text until a marker appears, then searches the number right after it.
//!
//! Several texts (rationales) share their first row; the distributions of the numbers of those that reach the
//! marker are averaged. If no text reaches it, all mass is invalid. Only the first text is sent to the
//! client.

use std::sync::Arc;

use super::super::{Decoding, Progress, StepResult, Vocabulary, check_row, not_a_distribution};
use super::{Rationale, Root, average_rationales, rules, search};
use crate::Token;
use crate::contract::{
    AfterMarker, EngineError, Event, FinishReason, LogitsRequest, NumberJob, NumberOutcome, PathRow,
};
use crate::numbers::NumberRules;
use crate::sampling::Sampler;
use crate::text::TextStream;

pub(super) struct NumberAfterText {
    job: NumberJob,
    rules: NumberRules,
    vocabulary: Vocabulary,
    after: AfterMarker,
    first_row: Option<PathRow>,
    texts: Vec<Text>,
    in_step: Vec<TextRows>,
    nodes: usize,
    forward_passes: usize,
}

/// Rows of one text in the present step.
struct TextRows {
    text: usize,
    rows: usize,
}

struct Text {
    ids: Vec<u32>,
    stream: TextStream,
    sampler: Sampler,
    stage: Stage,
}

enum Stage {
    /// Before its first token.
    Start,
    Writing(PathRow),
    Searching(Box<dyn Decoding>),
    Found(NumberOutcome),
    /// The text ended without the marker.
    Missed(FinishReason),
}

impl Text {
    fn logits_request(&self) -> LogitsRequest {
        if self.sampler.takes_best() { LogitsRequest::Best } else { LogitsRequest::All }
    }

    /// `None` until its number is found.
    fn rationale(&self) -> Option<Rationale<'_>> {
        let number = match &self.stage {
            Stage::Found(outcome) => Ok(outcome),
            Stage::Missed(reason) => Err(*reason),
            Stage::Start | Stage::Writing(_) | Stage::Searching(_) => return None,
        };
        Some(Rationale { tokens: self.ids.len(), number })
    }
}

impl NumberAfterText {
    /// `before`: the ids before the texts in the same sequence.
    pub(super) fn new(
        job: &NumberJob,
        after: &AfterMarker,
        vocabulary: &Vocabulary,
        before: &[u32],
        first_token: u32,
    ) -> Self {
        let stop: Arc<[String]> = Arc::new([after.stop().to_owned()]);
        let mut texts = Vec::new();
        for stream in 0..after.rationales.max(1) {
            let decoder = Arc::clone(&vocabulary.decoder);
            texts.push(Text {
                ids: Vec::new(),
                stream: TextStream::new(decoder, Arc::clone(&stop)).after_prompt(before),
                sampler: Sampler::new(after.sampling, u64::from(stream)).after_prompt(before),
                stage: Stage::Start,
            });
        }
        Self {
            job: job.clone(),
            rules: rules(job, vocabulary),
            vocabulary: vocabulary.clone(),
            after: after.clone(),
            first_row: Some(PathRow::new(None, first_token)),
            texts,
            in_step: Vec::new(),
            nodes: 0,
            forward_passes: 0,
        }
    }

    /// Adds one token to a text.
    fn write(
        &mut self,
        index: usize,
        result: StepResult<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let row = result.row(0);
        let text = &mut self.texts[index];
        let id = if text.logits_request() == LogitsRequest::Best {
            self.vocabulary.best(row.logits)?
        } else {
            let logits = row.full()?;
            check_row(logits)?;
            text.sampler.choose(self.vocabulary.known(logits)).ok_or_else(not_a_distribution)?
        };
        let ends = self.vocabulary.eos_ids.contains(&id);
        text.ids.push(id);
        let mut shown =
            if ends { String::new() } else { text.stream.push(Token { id, value: row.head_value }) };
        let next = PathRow::new(Some(row.node), id);
        let over = ends || text.ids.len() >= self.after.max_tokens;
        let stage = if text.stream.stopped().is_some() {
            shown += &self.after.marker;
            self.begin_search(index, next)
        } else if over {
            shown += &text.stream.finish();
            Stage::Missed(if ends { FinishReason::Stop } else { FinishReason::Length })
        } else {
            Stage::Writing(next)
        };
        self.texts[index].stage = stage;
        if index == 0 {
            events.push(Event::Text { choice: 0, text: shown, tokens: 1, token: None, offset: 0 });
        }
        Ok(())
    }

    /// Begins the search right after the marker. The last token may hold the marker and the number's first
    /// characters.
    fn begin_search(&self, index: usize, row: PathRow) -> Stage {
        let written = self.vocabulary.decoder.decode(&self.texts[index].ids);
        match self.rules.state_after(self.after.number_begun(&written)) {
            Some(state) => {
                let rules = self.rules.clone();
                let root = Root { row, state, is_reported: false };
                Stage::Searching(search(&self.job, &self.vocabulary, rules, root, index as u64))
            }
            None => Stage::Found(NumberOutcome::not_a_number()),
        }
    }

    fn advance_text(
        &mut self,
        index: usize,
        result: StepResult<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let Stage::Searching(search) = &mut self.texts[index].stage else {
            return self.write(index, result, events);
        };
        let mut found = Vec::new();
        search.advance(result, &mut found)?;
        if let Some(Event::Number(outcome)) = found.pop() {
            self.texts[index].stage = Stage::Found(outcome);
        }
        Ok(())
    }

    /// Returns the average once all texts have ended.
    fn outcome(&self) -> Option<NumberOutcome> {
        let average = average_rationales(self.texts.iter().map(Text::rationale).collect::<Option<Vec<_>>>()?);
        Some(NumberOutcome {
            nodes: self.nodes + average.nodes,
            forward_passes: self.forward_passes,
            ..average
        })
    }
}

impl Decoding for NumberAfterText {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        self.in_step.clear();
        if let (Some(first), Some(text)) = (&self.first_row, self.texts.first()) {
            // All texts share the first row.
            return vec![first.clone().with_logits(text.logits_request())];
        }
        let mut rows = Vec::new();
        for (index, text) in self.texts.iter_mut().enumerate() {
            let left = rows_max - rows.len();
            if left == 0 {
                break;
            }
            let logits = text.logits_request();
            let own = match &mut text.stage {
                Stage::Writing(row) => vec![row.clone().with_logits(logits)],
                Stage::Searching(search) => search.next_rows(left),
                Stage::Start | Stage::Found(_) | Stage::Missed(_) => continue,
            };
            self.in_step.push(TextRows { text: index, rows: own.len() });
            rows.extend(own);
        }
        rows
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        self.forward_passes += 1;
        if self.first_row.take().is_some() {
            self.nodes += 1;
            for index in 0..self.texts.len() {
                self.write(index, result, events)?;
            }
        }
        let mut offset = 0;
        for TextRows { text: index, rows } in std::mem::take(&mut self.in_step) {
            self.nodes += usize::from(matches!(self.texts[index].stage, Stage::Writing(_)));
            self.advance_text(index, result.after_rows(offset), events)?;
            offset += rows;
        }
        let Some(outcome) = self.outcome() else { return Ok(Progress::Running) };
        events.push(Event::Number(outcome));
        Ok(Progress::Done)
    }

    fn search_bytes(&self) -> usize {
        let mut bytes = 0;
        for text in &self.texts {
            bytes += match &text.stage {
                Stage::Searching(search) => search.search_bytes(),
                Stage::Found(outcome) => outcome.distribution.bytes(),
                Stage::Start | Stage::Writing(_) | Stage::Missed(_) => 0,
            };
        }
        bytes
    }
}

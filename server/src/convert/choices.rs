//! Events of the engine as choices of the API: pieces for a stream, or put together for one answer.
//!
//! [`ChoiceWriter`] makes a piece of every event; [`Transcript`] joins the pieces. Because there is no other way to an
//! answer, a stream put together by a client reads as the answer that is not streamed.

use std::collections::BTreeMap;
use std::sync::Arc;

use ntl_api::{Choice, FinishReason, Logprobs, Usage};
use ntl_core::engine::{self, Event, NumberOutcome, TokenLogprob, TokenText};
use ntl_core::text::TextDecoder;

use super::NumberPrint;
use super::plan::Wanted;

/// Stands for minus infinity, which JSON cannot carry; OpenAI's choice.
const LOGPROB_MIN: f64 = -9999.0;

/// Makes pieces of choices.
pub(crate) struct ChoiceWriter {
    decoder: Arc<dyn TextDecoder>,
    per_prompt: u64,
    number: Option<NumberPrint>,
    with_logprobs: bool,
    with_number_tokens: bool,
    /// Characters of each choice so far.
    chars: BTreeMap<u64, u64>,
    usage: Usage,
}

impl ChoiceWriter {
    /// For answers to prompts of so many tokens.
    pub(crate) fn new(decoder: Arc<dyn TextDecoder>, wanted: &Wanted, prompt_tokens: u64) -> Self {
        let number = match wanted {
            Wanted::Text(_) | Wanted::Beams(_) => None,
            Wanted::Number(plan) => Some(plan.print().clone()),
        };
        let usage = Usage { prompt_tokens, completion_tokens: 0, total_tokens: prompt_tokens };
        let per_prompt = u64::from(wanted.answers_per_prompt());
        let (with_logprobs, with_number_tokens) = (wanted.with_logprobs(), wanted.with_number_tokens());
        Self { decoder, per_prompt, number, with_logprobs, with_number_tokens, chars: BTreeMap::new(), usage }
    }

    /// What an event adds to a choice; `None` where there is nothing to show.
    pub(crate) fn write(&mut self, prompt: usize, event: Event) -> Option<Choice> {
        let first = prompt as u64 * self.per_prompt;
        let index = |choice| first + u64::from(choice);
        match event {
            Event::Text { text, token: None, .. } if text.is_empty() => None,
            Event::Text { choice, text, token } => Some(self.text(index(choice), text, token)),
            Event::Finished { choice, reason, tokens, cumulative_logprob } => {
                self.count(tokens);
                let finish_reason = Some(finish_reason(reason));
                let cumulative_logprob = cumulative_logprob.map(finite);
                Some(Choice { finish_reason, cumulative_logprob, ..piece(index(choice)) })
            }
            Event::Number(outcome) => self.number(index(0), &outcome),
            Event::Scored(_) | Event::Failed(_) => None,
        }
    }

    /// Tokens counted so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    fn text(&mut self, index: u64, text: String, token: Option<TokenText>) -> Choice {
        let chars = self.chars.entry(index).or_default();
        let offset = *chars;
        *chars += text.chars().count() as u64;
        let logprobs = token.filter(|_| self.with_logprobs).map(|token| self.logprobs(&token, offset));
        Choice { text, logprobs, ..piece(index) }
    }

    fn number(&mut self, index: u64, outcome: &NumberOutcome) -> Option<Choice> {
        self.count(outcome.nodes);
        let (text, number) = self.number.as_ref()?.show(outcome);
        Some(Choice { text, finish_reason: Some(FinishReason::Stop), number: Some(number), ..piece(index) })
    }

    fn logprobs(&self, token: &TokenText, offset: u64) -> Logprobs {
        let text = self.decoder.token_text(token.token.id);
        let mut top = BTreeMap::new();
        // Ids that read alike share an entry: the chosen one's, else the most probable.
        for TokenLogprob { id, logprob } in std::iter::once(&token.token).chain(&token.top) {
            top.entry(self.decoder.token_text(*id)).or_insert(finite(*logprob));
        }
        let number = token.number.filter(|number| number.value.is_finite());
        Logprobs {
            tokens: vec![text],
            token_logprobs: vec![Some(finite(token.token.logprob))],
            top_logprobs: Some(vec![top]),
            text_offset: vec![offset],
            number_values: self.with_number_tokens.then(|| vec![number.map(|number| number.value)]),
            number_mass: self
                .with_number_tokens
                .then(|| vec![number.map(|number| number.mass.clamp(0.0, 1.0))]),
        }
    }

    fn count(&mut self, tokens: usize) {
        self.usage.completion_tokens += tokens as u64;
        self.usage.total_tokens += tokens as u64;
    }
}

/// All choices of an answer while they are put together.
pub(crate) struct Transcript(Vec<Choice>);

impl Transcript {
    /// Empty choices for so many prompts.
    pub(crate) fn new(prompts: usize, wanted: &Wanted) -> Self {
        let count = prompts as u64 * u64::from(wanted.answers_per_prompt());
        let numbers = wanted.with_number_tokens().then(Vec::new);
        let nothing = Logprobs {
            top_logprobs: Some(Vec::new()),
            number_values: numbers.clone(),
            number_mass: numbers,
            ..Logprobs::default()
        };
        let logprobs = wanted.with_logprobs().then_some(nothing);
        Self((0..count).map(|index| Choice { logprobs: logprobs.clone(), ..piece(index) }).collect())
    }

    /// Adds a piece.
    pub(crate) fn add(&mut self, piece: Choice) {
        let place = usize::try_from(piece.index).ok().and_then(|index| self.0.get_mut(index));
        if let Some(choice) = place {
            choice.text.push_str(&piece.text);
            choice.finish_reason = piece.finish_reason.or(choice.finish_reason);
            choice.cumulative_logprob = piece.cumulative_logprob.or(choice.cumulative_logprob);
            choice.number = piece.number.or(choice.number.take());
            if let (Some(all), Some(new)) = (choice.logprobs.as_mut(), piece.logprobs) {
                extend(all, new);
            }
        }
    }

    /// The choices, by index.
    pub(crate) fn into_choices(self) -> Vec<Choice> {
        self.0
    }
}

fn extend(all: &mut Logprobs, new: Logprobs) {
    all.tokens.extend(new.tokens);
    all.token_logprobs.extend(new.token_logprobs);
    all.top_logprobs.get_or_insert_default().extend(new.top_logprobs.unwrap_or_default());
    all.text_offset.extend(new.text_offset);
    for (all, new) in [(&mut all.number_values, new.number_values), (&mut all.number_mass, new.number_mass)] {
        if let (Some(all), Some(new)) = (all, new) {
            all.extend(new);
        }
    }
}

fn piece(index: u64) -> Choice {
    Choice {
        index,
        text: String::new(),
        logprobs: None,
        finish_reason: None,
        cumulative_logprob: None,
        number: None,
    }
}

fn finish_reason(reason: engine::FinishReason) -> FinishReason {
    match reason {
        engine::FinishReason::Stop => FinishReason::Stop,
        engine::FinishReason::Length => FinishReason::Length,
    }
}

/// A log-probability that JSON can carry.
pub(super) fn finite(logprob: f64) -> f64 {
    if logprob.is_nan() { LOGPROB_MIN } else { logprob.clamp(LOGPROB_MIN, 0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_fit_into_json() {
        for (logprob, want) in
            [(f64::NEG_INFINITY, LOGPROB_MIN), (f64::NAN, LOGPROB_MIN), (-1.5, -1.5), (1e-12, 0.0)]
        {
            assert!((finite(logprob) - want).abs() < 1e-12, "{logprob}");
        }
    }
}

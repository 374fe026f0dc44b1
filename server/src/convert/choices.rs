//! Events of the engine as choices of the API, piece by piece.
//!
//! [`ChoiceWriter`] makes a piece of every event; [`super::Transcript`] joins the pieces. Because there is no other way
//! to an answer, a stream put together by a client reads as the answer that is not streamed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ntl_api::{Choice, FinishReason, Logprobs, Usage};
use ntl_core::engine::{self, Event, NumberOutcome, TokenLogprob, TokenText};
use ntl_core::text::TextDecoder;

use super::NumberPrint;
use super::echo::PromptShown;
use super::plan::Wanted;
use super::text::Shown;
use super::transcript::append;

/// Stands for minus infinity, which JSON cannot carry; OpenAI's choice.
const LOGPROB_MIN: f64 = -9999.0;

/// Makes pieces of choices.
pub(crate) struct ChoiceWriter {
    tokens: TokenWriter,
    per_prompt: u32,
    number: Option<NumberPrint>,
    shown: Shown,
    /// What is known of each prompt; empty where none is shown.
    prompts: Vec<PromptShown>,
    /// Choices that have begun.
    begun: BTreeSet<u64>,
    /// Characters of each choice so far.
    chars: BTreeMap<u64, u64>,
    usage: Usage,
}

impl ChoiceWriter {
    /// For answers to prompts of so many tokens. `prompts` are needed where [`Shown::shows_prompt`].
    pub(crate) fn new(
        decoder: Arc<dyn TextDecoder>,
        wanted: &Wanted,
        prompt_tokens: u64,
        prompts: Vec<PromptShown>,
    ) -> Self {
        let number = match wanted {
            Wanted::Text(_) | Wanted::Beams(..) => None,
            Wanted::Number(plan) => Some(plan.print().clone()),
        };
        let shown = wanted.shown();
        Self {
            tokens: TokenWriter { decoder, with_numbers: shown.number_tokens },
            per_prompt: wanted.answers_per_prompt(),
            number,
            shown,
            prompts,
            begun: BTreeSet::new(),
            chars: BTreeMap::new(),
            usage: Usage { prompt_tokens, completion_tokens: 0, total_tokens: prompt_tokens },
        }
    }

    /// What an event adds to a choice; `None` where there is nothing to show.
    pub(crate) fn write(&mut self, prompt: usize, event: Event) -> Option<Choice> {
        let first = prompt as u64 * u64::from(self.per_prompt);
        let index = |choice| first + u64::from(choice);
        match event {
            Event::Prompt(tokens) => {
                self.prompts.get_mut(prompt)?.tokens.extend(tokens);
                None
            }
            Event::Text { text, token: None, .. } if text.is_empty() => None,
            Event::Text { choice, text, token } => {
                let piece = self.begin(prompt, index(choice));
                Some(self.text(piece, text, token))
            }
            Event::Finished { choice, reason, tokens, cumulative_logprob } => {
                self.count(tokens);
                // The others of `best_of` are counted only.
                (choice < self.per_prompt).then(|| {
                    let begun = self.begin(prompt, index(choice));
                    let finish_reason = Some(finish_reason(reason));
                    let cumulative_logprob = cumulative_logprob.map(finite);
                    Choice { finish_reason, cumulative_logprob, ..begun }
                })
            }
            Event::Number(outcome) => self.number(index(0), &outcome),
            Event::Scored(_) | Event::Failed(_) => None,
        }
    }

    /// Tokens counted so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// An empty piece, or the prompt at the beginning of a choice.
    fn begin(&mut self, prompt: usize, index: u64) -> Choice {
        if !self.begun.insert(index) {
            return Choice { index, ..Choice::default() };
        }
        let shown = self.prompts.get(prompt).map(|prompt| prompt.beginning(self.shown, &self.tokens));
        let piece = Choice { index, ..shown.unwrap_or_default() };
        self.chars.insert(index, piece.text.chars().count() as u64);
        piece
    }

    fn text(&mut self, mut piece: Choice, text: String, token: Option<TokenText>) -> Choice {
        let chars = self.chars.entry(piece.index).or_default();
        let offset = *chars;
        *chars += text.chars().count() as u64;
        let written = |count| token.as_ref().map(|token| self.tokens.write(token, count));
        let logprobs = self.shown.logprobs.and_then(written);
        let logprobs = logprobs.map(|logprobs| Logprobs { text_offset: vec![offset], ..logprobs });
        let ids = token.as_ref().filter(|_| self.shown.token_ids).map(|token| vec![token.token.id]);
        let index = piece.index;
        append(&mut piece, Choice { index, text, logprobs, token_ids: ids, ..Choice::default() });
        piece
    }

    fn number(&mut self, index: u64, outcome: &NumberOutcome) -> Option<Choice> {
        self.count(outcome.nodes);
        let (text, number) = self.number.as_ref()?.show(outcome);
        let finish_reason = Some(FinishReason::Stop);
        Some(Choice { index, text, finish_reason, number: Some(number), ..Choice::default() })
    }

    fn count(&mut self, tokens: usize) {
        self.usage.completion_tokens += tokens as u64;
        self.usage.total_tokens += tokens as u64;
    }
}

/// Makes the arrays of one token.
pub(super) struct TokenWriter {
    pub(super) decoder: Arc<dyn TextDecoder>,
    with_numbers: bool,
}

impl TokenWriter {
    /// A token with the `count` most probable ones at its place; where it begins is for the caller to say.
    pub(super) fn write(&self, token: &TokenText, count: usize) -> Logprobs {
        let mut top = BTreeMap::new();
        // Ids that read alike share an entry: the chosen one's, else the most probable.
        for TokenLogprob { id, logprob } in std::iter::once(&token.token).chain(token.top.iter().take(count))
        {
            top.entry(self.decoder.token_text(*id)).or_insert(finite(*logprob));
        }
        let number = token.number.filter(|number| number.value.is_finite());
        let of = |part: fn(engine::TokenNumber) -> f64| self.with_numbers.then(|| vec![number.map(part)]);
        Logprobs {
            tokens: vec![self.decoder.token_text(token.token.id)],
            token_logprobs: vec![Some(finite(token.token.logprob))],
            top_logprobs: Some(vec![Some(top)]),
            text_offset: Vec::new(),
            number_values: of(|number| number.value),
            number_mass: of(|number| number.mass.clamp(0.0, 1.0)),
        }
    }

    /// A token before which nothing stands.
    pub(super) fn without_logprob(&self, id: u32) -> Logprobs {
        Logprobs {
            tokens: vec![self.decoder.token_text(id)],
            token_logprobs: vec![None],
            top_logprobs: Some(vec![None]),
            text_offset: Vec::new(),
            number_values: self.with_numbers.then(|| vec![None]),
            number_mass: self.with_numbers.then(|| vec![None]),
        }
    }

    /// No token.
    pub(super) fn empty(&self) -> Logprobs {
        Logprobs {
            top_logprobs: Some(Vec::new()),
            number_values: self.with_numbers.then(Vec::new),
            number_mass: self.with_numbers.then(Vec::new),
            ..Logprobs::default()
        }
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

//! Answers, independent of the API that they go out through: pieces of choices, made of the engine's events.
//!
//! [`Assembler`] makes a piece of every event, [`Piece::append`] joins pieces to whole choices, and the
//! adapters write either. There is no other way to an answer, so the joined chunks of a stream equal the
//! answer that is not streamed.

use std::collections::BTreeMap;
use std::sync::Arc;

use ntl_api::{FieldNumber, Number};
use ntl_core::Prompt;
use ntl_core::contract::{Event, FinishReason, TokenText};
use ntl_core::text::{TextDecoder, TextStream};

use crate::request::{GenerationRequest, ReportOptions};

/// The new part of one choice.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Piece {
    /// Index of the prompt times choices per prompt, plus the number of the choice.
    pub(crate) index: u64,
    pub(crate) text: String,
    /// The decoded tokens, if the response has log-probabilities or token ids.
    pub(crate) tokens: Vec<TokenReport>,
    pub(crate) finish_reason: Option<FinishReason>,
    /// Log-probability of the whole text, if a beam search found it.
    pub(crate) cumulative_logprob: Option<f64>,
    pub(crate) number: Option<Number>,
    /// Numbers of a structured text.
    pub(crate) numbers: Vec<FieldNumber>,
    /// The prompt, in the first piece of a choice if the response reports it.
    pub(crate) prompt: Option<PromptReport>,
    /// Whether it is the first piece of its choice.
    pub(crate) begins_choice: bool,
    /// Whether it is the first piece of the response.
    pub(crate) begins_response: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenReport {
    pub(crate) token: TokenText,
    /// Where the token begins in the text (the echoed prompt included), in characters.
    pub(crate) offset: u64,
}

/// The part of a prompt that the response reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptReport {
    pub(crate) ids: Vec<u32>,
    /// The text of the request, or the text of its ids; empty unless it is echoed.
    pub(crate) text: String,
    /// Where each token begins in the text, in characters; empty unless it is echoed with log-probabilities.
    pub(crate) offsets: Vec<u64>,
    /// The log-probabilities of the tokens from the second one on: nothing precedes the first.
    pub(crate) tokens: Vec<TokenText>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenCounts {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
}

impl Piece {
    /// Adds a later piece of the same choice.
    pub(crate) fn append(&mut self, later: Self) {
        self.text.push_str(&later.text);
        self.tokens.extend(later.tokens);
        self.finish_reason = later.finish_reason.or(self.finish_reason);
        self.cumulative_logprob = later.cumulative_logprob.or(self.cumulative_logprob);
        self.number = later.number.or(self.number.take());
        self.numbers.extend(later.numbers);
        self.prompt = self.prompt.take().or(later.prompt);
    }

    /// Returns its approximate size, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let token = |token: &TokenText| size_of::<TokenReport>() + size_of_val(&*token.top);
        let tokens: usize = self.tokens.iter().map(|report| token(&report.token)).sum();
        let prompt = self.prompt.as_ref().map_or(0, |prompt| {
            let tokens: usize = prompt.tokens.iter().map(token).sum();
            prompt.text.len() + size_of_val(&*prompt.ids) + tokens
        });
        self.text.len() + tokens + prompt
    }
}

/// Returns the choices of a response, still empty.
pub(crate) fn choices(prompts: usize, choices_per_prompt: u32) -> Vec<Piece> {
    let count = prompts as u64 * u64::from(choices_per_prompt);
    (0..count).map(|index| Piece { index, ..Piece::default() }).collect()
}

impl PromptReport {
    /// A prompt before the engine has said anything of it. `text` is the text that was sent, if it was not
    /// sent as ids.
    pub(crate) fn new(
        prompt: &Prompt,
        text: Option<String>,
        report: ReportOptions,
        decoder: &Arc<dyn TextDecoder>,
    ) -> Self {
        let ids: Vec<u32> = prompt.ids().collect();
        let text = if report.echo { text.unwrap_or_else(|| decoder.decode(&ids)) } else { String::new() };
        let mut offsets = Vec::new();
        if report.echo && report.logprobs.is_some() {
            let mut stream = TextStream::new(Arc::clone(decoder), Arc::from([]));
            for &id in &ids {
                stream.push(id);
                offsets.push(stream.token_offset() as u64);
            }
        }
        Self { ids, text, offsets, tokens: Vec::new() }
    }
}

/// Makes pieces of events.
pub(crate) struct Assembler {
    choices_per_prompt: u32,
    report: ReportOptions,
    /// The report of each prompt; empty if the response has none.
    prompts: Vec<PromptReport>,
    /// Start of the decoded text of each choice that has begun, in characters: after the echoed prompt.
    first_chars: BTreeMap<u64, u64>,
    counts: TokenCounts,
}

impl Assembler {
    /// `prompts` are needed where [`ReportOptions::includes_prompt`].
    pub(crate) fn new(request: &GenerationRequest, prompt_tokens: usize, prompts: Vec<PromptReport>) -> Self {
        Self {
            choices_per_prompt: request.choices_per_prompt(),
            report: request.report,
            prompts,
            first_chars: BTreeMap::new(),
            counts: TokenCounts { prompt: prompt_tokens, completion: 0 },
        }
    }

    /// Returns the new part of a choice, or `None` if the event adds nothing.
    pub(crate) fn piece(&mut self, prompt: usize, event: Event) -> Option<Piece> {
        let first = prompt as u64 * u64::from(self.choices_per_prompt);
        let index = |choice: u32| first + u64::from(choice);
        match event {
            Event::Prompt(tokens) => {
                self.prompts.get_mut(prompt)?.tokens.extend(tokens);
                None
            }
            Event::Text { text, token: None, .. } if text.is_empty() => None,
            Event::Text { choice, text, token, offset, .. } => {
                let mut piece = self.begin(prompt, index(choice));
                let offset = self.first_chars.entry(piece.index).or_default().saturating_add(offset as u64);
                piece.tokens.extend(token.map(|token| TokenReport { token, offset }));
                piece.text = text;
                Some(piece)
            }
            Event::Finished { choice, reason, tokens, cumulative_logprob } => {
                self.counts.completion += tokens;
                // The other texts of `best_of` are only counted.
                (choice < self.choices_per_prompt).then(|| Piece {
                    finish_reason: Some(reason),
                    cumulative_logprob,
                    ..self.begin(prompt, index(choice))
                })
            }
            Event::Field(_) | Event::Number(_) | Event::Scored(_) | Event::Failed(_) => None,
        }
    }

    /// Returns the end of a choice with a number, which is printed with this many tokens.
    pub(crate) fn number(
        &mut self,
        prompt: usize,
        reason: FinishReason,
        (text, number): (String, Number),
        tokens: usize,
    ) -> Piece {
        self.counts.completion += tokens;
        let piece = self.begin(prompt, prompt as u64 * u64::from(self.choices_per_prompt));
        Piece { text, finish_reason: Some(reason), number: Some(number), ..piece }
    }

    /// Returns a piece with a number of a structured text.
    pub(crate) fn field(&mut self, prompt: usize, choice: u32, number: FieldNumber) -> Option<Piece> {
        let index = prompt as u64 * u64::from(self.choices_per_prompt) + u64::from(choice);
        (choice < self.choices_per_prompt)
            .then(|| Piece { numbers: vec![number], ..self.begin(prompt, index) })
    }

    /// The tokens of the prompts, and those decoded so far.
    pub(crate) fn token_counts(&self) -> TokenCounts {
        self.counts
    }

    /// An empty piece; the first one of a choice holds the prompt.
    fn begin(&mut self, prompt: usize, index: u64) -> Piece {
        let begins_response = self.first_chars.is_empty();
        let begins_choice = !self.first_chars.contains_key(&index);
        let prompt = self.prompts.get(prompt).filter(|_| begins_choice).cloned();
        if begins_choice {
            let echoed = prompt.as_ref().filter(|_| self.report.echo);
            self.first_chars.insert(index, echoed.map_or(0, |prompt| chars_of(&prompt.text)));
        }
        Piece { index, prompt, begins_choice, begins_response, ..Piece::default() }
    }
}

fn chars_of(text: &str) -> u64 {
    text.chars().count() as u64
}

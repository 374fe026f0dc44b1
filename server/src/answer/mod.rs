//! Answers, independent of the API that they go out through: pieces of choices, made of the engine's events.
//!
//! [`Assembler`] makes a piece of every event, [`Piece::append`] joins pieces to whole choices, and the
//! `apis` write either. There is no other way to an answer, so the joined chunks of a stream equal the
//! answer that is not streamed.

use std::collections::BTreeMap;
use std::sync::Arc;

use ntl_api::{LocatedField, LocatedNumber, MethodName, Number};
use ntl_core::Prompt;
use ntl_core::contract::{Event, FieldOutcome, FinishReason, StopReason, TokenText};
use ntl_core::text::{TextDecoder, TextStream};
use ntl_text::tools::{ToolParser, ToolPart};

use crate::request::{CallParsing, EngineWork, GenerationRequest, ReportOptions};

/// The new part of one choice.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Piece {
    /// Index of the prompt times choices per prompt, plus the number of the choice.
    pub(crate) index: u64,
    /// The text outside of calls.
    pub(crate) text: String,
    /// The calls of functions, or the new part of one.
    pub(crate) calls: Vec<CallPart>,
    /// The decoded tokens, if the response has log-probabilities or token ids.
    pub(crate) tokens: Vec<TokenReport>,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) stop_reason: Option<StopReason>,
    /// Whether the choice has calls; known in its last piece.
    pub(crate) has_calls: bool,
    /// Log-probability of the whole text, if a beam search found it.
    pub(crate) cumulative_logprob: Option<f64>,
    pub(crate) number: Option<Number>,
    /// The numbers of a structured text outside of calls, or all numbers of an answer that consists of
    /// several.
    pub(crate) numbers: Vec<LocatedNumber>,
    /// The fields of a structured text outside of calls.
    pub(crate) fields: Vec<LocatedField>,
    /// The prompt, in the first piece of a choice if the response reports it.
    pub(crate) prompt: Option<PromptReport>,
    /// Whether it is the first piece of its choice.
    pub(crate) begins_choice: bool,
    /// Whether it is the first piece of the response.
    pub(crate) begins_response: bool,
}

/// A call, or the new part of one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CallPart {
    /// Index of the call in its choice.
    pub(crate) index: usize,
    /// Its id and its function, in its first part.
    pub(crate) begins: Option<CallBeginning>,
    pub(crate) arguments: String,
    /// The numbers of the arguments, with their paths in the arguments.
    pub(crate) numbers: Vec<LocatedNumber>,
    /// The fields of the arguments, with their paths in the arguments.
    pub(crate) fields: Vec<LocatedField>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallBeginning {
    pub(crate) id: String,
    pub(crate) name: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenReport {
    pub(crate) token: TokenText,
    /// Where the token begins in the text (the echoed prompt included), in characters.
    pub(crate) offset: u64,
}

/// A number as the response shows it.
pub(crate) struct ShownNumber {
    pub(crate) method: MethodName,
    /// The printed value.
    pub(crate) text: String,
    pub(crate) number: Number,
    /// All numbers of the answer, if the model writes several.
    pub(crate) numbers: Vec<LocatedNumber>,
    /// The tokens of the text.
    pub(crate) tokens: usize,
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
    /// The work of another engine, if one computes the model.
    pub(crate) engine: Option<EngineWork>,
}

impl Piece {
    /// Adds a later piece of the same choice.
    pub(crate) fn append(&mut self, later: Self) {
        self.text.push_str(&later.text);
        for part in later.calls {
            match self.calls.last_mut() {
                Some(call) if call.index == part.index => call.append(part),
                _ => self.calls.push(part),
            }
        }
        self.has_calls |= later.has_calls;
        self.tokens.extend(later.tokens);
        self.finish_reason = later.finish_reason.or(self.finish_reason);
        self.stop_reason = later.stop_reason.or(self.stop_reason.take());
        self.cumulative_logprob = later.cumulative_logprob.or(self.cumulative_logprob);
        self.number = later.number.or(self.number.take());
        self.numbers.extend(later.numbers);
        self.fields.extend(later.fields);
        self.prompt = self.prompt.take().or(later.prompt);
    }

    /// Returns its approximate size, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let mut bytes = self.text.len();
        for call in &self.calls {
            bytes += size_of::<CallPart>() + call.arguments.len();
        }
        for report in &self.tokens {
            bytes += token_bytes(&report.token);
        }
        if let Some(prompt) = &self.prompt {
            bytes += prompt.text.len() + size_of_val(&*prompt.ids);
            bytes += prompt.tokens.iter().map(token_bytes).sum::<usize>();
        }
        bytes
    }
}

/// Returns the approximate size of a token's report, in bytes.
fn token_bytes(token: &TokenText) -> usize {
    size_of::<TokenReport>() + size_of_val(&*token.top)
}

impl CallPart {
    /// Adds a later part of the same call.
    fn append(&mut self, later: Self) {
        self.begins = self.begins.take().or(later.begins);
        self.arguments.push_str(&later.arguments);
        self.numbers.extend(later.numbers);
        self.fields.extend(later.fields);
    }
}

/// Returns the choices of a response, still empty.
pub(crate) fn choices(prompts: usize, choices_per_prompt: u32) -> Vec<Piece> {
    let count = prompts as u64 * u64::from(choices_per_prompt);
    (0..count).map(|index| Piece { index, ..Piece::default() }).collect()
}

impl PromptReport {
    /// The reports of all prompts of a request, with the texts that were sent.
    pub(crate) fn all(
        prompts: &[Prompt],
        texts: Vec<Option<String>>,
        report: ReportOptions,
        decoder: &Arc<dyn TextDecoder>,
    ) -> Vec<Self> {
        let pairs = prompts.iter().zip(texts);
        pairs.map(|(prompt, text)| Self::new(prompt, text, report, decoder)).collect()
    }

    /// A prompt before the engine has said anything of it. `text` is the text that was sent, if it was not
    /// sent as ids.
    fn new(
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
    calls: Option<CallParsing>,
    /// The parser of each choice that has begun, if the texts may have calls.
    parsers: BTreeMap<u64, CallReader>,
    counts: TokenCounts,
}

/// Reads the calls of one choice.
struct CallReader {
    parser: ToolParser,
    calls: usize,
}

impl Assembler {
    /// `prompts` are needed where [`ReportOptions::includes_prompt`].
    pub(crate) fn new(request: &GenerationRequest, prompt_tokens: usize, prompts: Vec<PromptReport>) -> Self {
        Self {
            choices_per_prompt: request.choices_per_prompt(),
            report: request.report,
            prompts,
            first_chars: BTreeMap::new(),
            calls: request.calls.clone(),
            parsers: BTreeMap::new(),
            counts: TokenCounts { prompt: prompt_tokens, completion: 0, engine: None },
        }
    }

    /// Returns the new parts of a choice; none if the event adds nothing.
    pub(crate) fn pieces(&mut self, prompt: usize, event: Event) -> Vec<Piece> {
        let first = prompt as u64 * u64::from(self.choices_per_prompt);
        match event {
            Event::Prompt(tokens) => {
                if let Some(report) = self.prompts.get_mut(prompt) {
                    report.tokens.extend(tokens);
                }
                Vec::new()
            }
            Event::Text { text, token: None, .. } if text.is_empty() => Vec::new(),
            Event::Text { choice, text, token, offset, .. } => {
                let index = first + u64::from(choice);
                let parts = match self.reader(index) {
                    Some(reader) => reader.parser.push(&text),
                    None => vec![ToolPart::Text(text)],
                };
                if parts.is_empty() && token.is_none() {
                    return Vec::new();
                }
                let mut pieces = self.parts(prompt, index, parts);
                let first_char = self.first_chars.entry(index).or_default();
                let offset = first_char.saturating_add(offset as u64);
                pieces[0].tokens.extend(token.map(|token| TokenReport { token, offset }));
                pieces
            }
            Event::Finished { choice, reason, stop_reason, tokens, cumulative_logprob } => {
                self.counts.completion += tokens;
                if choice >= self.choices_per_prompt {
                    // The other texts of `best_of` are only counted.
                    return Vec::new();
                }
                let index = first + u64::from(choice);
                let parts = self.reader(index).map(|reader| reader.parser.finish());
                let mut pieces = self.parts(prompt, index, parts.unwrap_or_default());
                if let Some(last) = pieces.last_mut() {
                    last.finish_reason = Some(reason);
                    last.stop_reason = stop_reason;
                    last.cumulative_logprob = cumulative_logprob;
                    last.has_calls = self.parsers.get(&index).is_some_and(|reader| reader.calls > 0);
                }
                pieces
            }
            Event::Field(_)
            | Event::Number(_)
            | Event::Scored(_)
            | Event::Options(_)
            | Event::Values(_)
            | Event::Failed(_) => Vec::new(),
        }
    }

    fn reader(&mut self, index: u64) -> Option<&mut CallReader> {
        let calls = self.calls.as_ref()?;
        Some(self.parsers.entry(index).or_insert_with(|| CallReader { parser: calls.parser(), calls: 0 }))
    }

    /// Returns a piece for each part, or an empty one if there are none.
    fn parts(&mut self, prompt: usize, index: u64, parts: Vec<ToolPart>) -> Vec<Piece> {
        if parts.is_empty() {
            return vec![self.begin(prompt, index)];
        }
        let mut pieces = Vec::with_capacity(parts.len());
        for part in parts {
            let mut piece = self.begin(prompt, index);
            match part {
                ToolPart::Text(text) => piece.text = text,
                ToolPart::Call(name) => piece.calls.extend(self.begin_call(index, name)),
                ToolPart::Arguments(arguments) => {
                    let calls = self.parsers.get(&index).map_or(0, |reader| reader.calls);
                    let index = calls.saturating_sub(1);
                    piece.calls.push(CallPart { index, arguments, ..CallPart::default() });
                }
            }
            pieces.push(piece);
        }
        pieces
    }

    fn begin_call(&mut self, index: u64, name: String) -> Option<CallPart> {
        let id = self.calls.as_ref()?.call_id();
        let reader = self.parsers.get_mut(&index)?;
        reader.calls += 1;
        let begins = Some(CallBeginning { id, name });
        Some(CallPart { index: reader.calls - 1, begins, ..CallPart::default() })
    }

    /// Returns the end of a choice with a number, which is printed with this many tokens.
    pub(crate) fn number(
        &mut self,
        prompt: usize,
        reason: FinishReason,
        shown: ShownNumber,
        tokens: usize,
    ) -> Piece {
        self.counts.completion += tokens;
        let piece = self.begin(prompt, prompt as u64 * u64::from(self.choices_per_prompt));
        let ShownNumber { text, number, numbers, .. } = shown;
        Piece { text, finish_reason: Some(reason), number: Some(number), numbers, ..piece }
    }

    /// Returns a piece with a field of a structured text, or of the arguments of a call.
    pub(crate) fn field(
        &mut self,
        prompt: usize,
        found: &FieldOutcome,
        shown: LocatedField,
    ) -> Option<Piece> {
        if found.choice >= self.choices_per_prompt {
            return None;
        }
        let index = prompt as u64 * u64::from(self.choices_per_prompt) + u64::from(found.choice);
        let mut piece = self.begin(prompt, index);
        let mut numbers = Vec::new();
        if let LocatedField::Number(number) = &shown {
            numbers.push((**number).clone());
        }
        let fields = vec![shown];
        match found.field.call {
            None => (piece.numbers, piece.fields) = (numbers, fields),
            Some(index) => piece.calls.push(CallPart { index, numbers, fields, ..CallPart::default() }),
        }
        Some(piece)
    }

    /// Sets the work of another engine for the whole request.
    pub(crate) fn set_engine(&mut self, work: EngineWork) {
        if let Some(usage) = work.of_samples() {
            self.counts.prompt = usize::try_from(usage.prompt_tokens).unwrap_or(usize::MAX);
            self.counts.completion = usize::try_from(usage.completion_tokens).unwrap_or(usize::MAX);
        }
        self.counts.engine = Some(work);
    }

    /// The tokens of the prompts, and those decoded so far.
    pub(crate) fn token_counts(&self) -> TokenCounts {
        self.counts
    }

    /// An empty piece; the first one of a choice holds the prompt.
    fn begin(&mut self, prompt: usize, index: u64) -> Piece {
        let begins_response = self.first_chars.is_empty();
        let begins_choice = !self.first_chars.contains_key(&index);
        let prompt = if begins_choice { self.prompts.get(prompt).cloned() } else { None };
        if begins_choice {
            let echoed = match &prompt {
                Some(prompt) if self.report.echo => chars_of(&prompt.text),
                _ => 0,
            };
            self.first_chars.insert(index, echoed);
        }
        Piece { index, prompt, begins_choice, begins_response, ..Piece::default() }
    }
}

fn chars_of(text: &str) -> u64 {
    text.chars().count() as u64
}

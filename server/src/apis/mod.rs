//! The APIs: JSON bodies to and from the server's own requests and answers. Pure functions without I/O.
//!
//! [`completions`], [`chat`] and [`responses`] all make a [`crate::request::GenerationRequest`] and write the
//! pieces of [`crate::answer`]; [`fields`] validates the request fields that they share, [`tools`] the
//! functions. Invariant: every JSON body becomes a valid request or a 400 that names the field.

pub(crate) mod candidates;
pub(crate) mod chat;
pub(crate) mod classify;
pub(crate) mod completions;
pub(crate) mod decisions;
pub(crate) mod embeddings;
mod fields;
pub(crate) mod forwarded;
pub(crate) mod labels;
mod number;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod sampled;
pub(crate) mod score;
pub(crate) mod tokenize;
mod tokens;
mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use ntl_api::{
    ChatToken, ChatTokenLogprobs, CompletionTokensDetails, EngineTokens, FinishReasonName, LocatedField,
    LocatedNumber, PromptLogprob, PromptLogprobs, PromptTokensDetails, StopReasonValue, Usage,
};
use ntl_core::contract::{self, FinishReason, NumberOutcome, StopReason, TokenLogprob, TokenText};
use ntl_core::text::TextDecoder;
use ntl_remote::EngineUsage;
use ntl_text::tokenizer::Tokenizer;
use serde::Serialize;

use crate::answer::{Piece, ShownNumber, TokenCounts, TokenReport};
use crate::error::AppError;
use crate::request::{EngineWork, ReportOptions};
use crate::served::ServedModel;
pub(crate) use fields::{RESPONSES_SHARED, WITHOUT_EFFECT, model_calibration};
use number::NumberFormat;
use tokens::{finite_logprob, number_of};

/// Writes answers in the style of one API.
pub(crate) trait AnswerWriter: Send + Sync + 'static {
    type Whole: Serialize;
    type Item: Serialize;
    type Chunk: Serialize;

    /// Whether a stream ends with `[DONE]`.
    const ENDS_WITH_DONE: bool = true;

    /// The field of the body that lists the items.
    const ITEMS: &'static str = "choices";

    fn context(&self) -> &AnswerContext;

    /// The first chunks of a stream, before any piece.
    fn first_chunks(&self) -> Vec<Self::Chunk> {
        Vec::new()
    }

    /// The chunks of a stream with a piece of one choice.
    fn chunks(&self, piece: Piece) -> Vec<Self::Chunk>;

    /// The chunks at the end of a stream. `include_usage` is the request's.
    fn last_chunks(&self, counts: TokenCounts, include_usage: bool) -> Vec<Self::Chunk>;

    /// The chunk that ends a stream that has failed; `None` for the body of the error.
    fn failure_chunk(&self, _error: &AppError) -> Option<Self::Chunk> {
        None
    }

    /// The name of the event with a chunk, if it has one.
    fn event_name(_chunk: &Self::Chunk) -> Option<&'static str> {
        None
    }

    /// The body of a response to these choices that is not streamed, without its items.
    fn whole(&self, choices: &[Piece], counts: TokenCounts) -> Self::Whole;

    /// The items of a choice of a response that is not streamed.
    fn items(&self, piece: Piece) -> Vec<Self::Item>;
}

/// The data that both APIs need to write a response.
pub(crate) struct AnswerContext {
    id: String,
    created: u64,
    model: String,
    fingerprint: Option<String>,
    tokenizer: Arc<Tokenizer>,
    decoder: Arc<dyn TextDecoder>,
    /// Number of tokens of an answer of dedicated number tokens.
    answer_tokens: Option<usize>,
    report: ReportOptions,
    /// The format of the number, if the request has one.
    number: Option<NumberFormat>,
}

impl AnswerContext {
    fn new(
        id_prefix: &str,
        model: &ServedModel,
        report: ReportOptions,
        number: Option<NumberFormat>,
    ) -> Self {
        Self {
            id: format!("{id_prefix}{}", uuid::Uuid::new_v4().simple()),
            created: crate::unix_seconds(),
            model: model.name.to_string(),
            fingerprint: model.fingerprint(),
            tokenizer: Arc::clone(&model.tokenizer),
            decoder: Arc::clone(&model.decoder),
            answer_tokens: model.profile.notation.as_ref().map(|notation| notation.answer_tokens()),
            report,
            number,
        }
    }

    /// Returns a number as the response shows it, if the request has one. If the tokenizer cannot spell the
    /// value (too long for a Regression Transformer), each character counts as a token.
    pub(crate) fn shown_number(&self, outcome: &NumberOutcome) -> Option<ShownNumber> {
        let format = self.number.as_ref()?;
        let (text, number) = format.show(outcome);
        let tokens = match self.answer_tokens {
            Some(tokens) => tokens,
            None => self.tokenizer.encode(&text, false).map_or(text.len(), |ids| ids.len()),
        };
        let mut numbers = Vec::new();
        if !outcome.further.is_empty() {
            let each = tokens / (outcome.further.len() + 1);
            for (index, outcome) in outcome.each().iter().enumerate() {
                let (_, number) = format.show(outcome);
                let token_range = [index * each, (index + 1) * each].map(|token| token as u64);
                numbers.push(LocatedNumber { path: format!("$[{index}]"), token_range, number });
            }
        }
        Some(ShownNumber { method: format.method, text, number, numbers, tokens })
    }

    /// Returns a field of a structured text as the response shows it.
    pub(crate) fn shown_field(&self, field: &contract::FieldOutcome) -> Option<LocatedField> {
        Some(self.number.as_ref()?.show_field(field))
    }

    /// The list of these numbers or fields. A structured text or call has it even if it is empty: as a whole,
    /// and where its stream begins.
    fn listed<T>(&self, items: Vec<T>, has_begin: bool) -> Option<Vec<T>> {
        let is_listed = has_begin && self.number.as_ref().is_some_and(NumberFormat::is_of_fields);
        (is_listed || !items.is_empty()).then_some(items)
    }

    /// Estimates the size of a number in the response, in bytes; 0 if the request has none.
    pub(crate) fn number_bytes(&self) -> usize {
        self.number.as_ref().map_or(0, NumberFormat::bytes)
    }

    /// The name of a token: its text, or its id with `return_tokens_as_token_ids`.
    fn token_name(&self, id: u32) -> String {
        if self.report.tokens_as_ids { format!("token_id:{id}") } else { self.decoder.token_text(id) }
    }

    /// The log-probabilities of tokens with their alternatives in the form of chats, if the request has them.
    fn logprobs(&self, tokens: &[TokenReport]) -> Option<Vec<ChatTokenLogprobs>> {
        let count = self.report.logprobs?;
        let with_numbers = self.report.number_tokens;
        let mut entries = Vec::with_capacity(tokens.len());
        for TokenReport { token, .. } in tokens {
            let number = number_of(token);
            entries.push(ChatTokenLogprobs {
                token: self.chat_token(&token.token),
                top_logprobs: token.top.iter().take(count).map(|top| self.chat_token(top)).collect(),
                number_value: with_numbers.then(|| number.map(|number| number.value)),
                number_mass: with_numbers.then(|| number.map(|number| number.mass)),
            });
        }
        Some(entries)
    }

    fn chat_token(&self, token: &TokenLogprob) -> ChatToken {
        ChatToken {
            token: self.token_name(token.id),
            bytes: Some(self.decoder.token_bytes(token.id)),
            logprob: finite_logprob(token.logprob),
        }
    }

    /// The token ids of a piece, with `return_token_ids`.
    fn token_ids(&self, piece: &Piece) -> Option<Vec<u32>> {
        self.report.token_ids.then(|| piece.tokens.iter().map(|report| report.token.token.id).collect())
    }

    /// The token ids of the prompt, with `return_token_ids`. Only the first piece of a choice has them.
    fn prompt_token_ids(&self, piece: &Piece) -> Option<Vec<u32>> {
        match &piece.prompt {
            Some(prompt) if self.report.token_ids => Some(prompt.ids.clone()),
            _ => None,
        }
    }

    /// The `prompt_logprobs` of vLLM: for each position by token id, the most probable tokens and the token
    /// itself.
    fn prompt_logprobs(&self, piece: &Piece) -> Option<PromptLogprobs> {
        let (prompt, count) = piece.prompt.as_ref().zip(self.report.prompt_logprobs)?;
        let mut positions = Vec::with_capacity(prompt.ids.len());
        if !prompt.ids.is_empty() {
            // Nothing comes before the first token.
            positions.push(None);
        }
        for token in &prompt.tokens {
            positions.push(Some(self.position_logprobs(token, count)));
        }
        Some(positions)
    }

    /// The `count` most probable tokens of a position and its own token, by token id.
    fn position_logprobs(&self, token: &TokenText, count: usize) -> BTreeMap<String, PromptLogprob> {
        let ranked = (1_u64..).zip(token.top.iter().take(count));
        let top = ranked.map(|(rank, entry)| (entry, Some(rank)));
        let mut by_id = BTreeMap::new();
        for (entry, rank) in top.chain([(&token.token, token.rank.map(|rank| rank as u64))]) {
            let decoded_token = self.tokenizer.token_text(entry.id);
            let logprob = finite_logprob(entry.logprob);
            by_id.entry(entry.id.to_string()).or_insert(PromptLogprob { logprob, rank, decoded_token });
        }
        by_id
    }
}

fn usage(counts: TokenCounts) -> Usage {
    let prompt_tokens = counts.prompt as u64;
    let completion_tokens = counts.completion as u64;
    let sampled = counts.engine.and_then(EngineWork::of_samples);
    Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens: prompt_tokens + completion_tokens,
        prompt_tokens_details: sampled
            .map(|EngineUsage { cached_tokens, .. }| PromptTokensDetails { cached_tokens }),
        completion_tokens_details: sampled
            .map(|EngineUsage { reasoning_tokens, .. }| CompletionTokensDetails { reasoning_tokens }),
        x_engine: counts.engine.map(engine_tokens),
    }
}

fn engine_tokens(work: EngineWork) -> EngineTokens {
    let EngineUsage { requests, prompt_tokens, cached_tokens, completion_tokens, .. } = work.usage;
    EngineTokens { requests, prompt_tokens, cached_tokens, completion_tokens }
}

fn stop_reason(reason: StopReason) -> StopReasonValue {
    match reason {
        StopReason::Text(text) => StopReasonValue::Text(text),
        StopReason::Token(id) => StopReasonValue::Token(id),
    }
}

fn finish_reason(reason: FinishReason, has_calls: bool) -> FinishReasonName {
    match reason {
        FinishReason::Stop if has_calls => FinishReasonName::ToolCalls,
        FinishReason::Stop => FinishReasonName::Stop,
        FinishReason::Length => FinishReasonName::Length,
    }
}

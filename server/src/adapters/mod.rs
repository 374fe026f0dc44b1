//! The APIs: JSON bodies to and from the server's own requests and answers. Pure functions without I/O.
//!
//! [`completions`] and [`chat`] both make a [`crate::request::GenerationRequest`] and both write the pieces of
//! [`crate::answer`]; [`fields`] validates the request fields that they share. Invariant: every JSON body becomes a valid
//! request or a 400 that names the field.

pub(crate) mod candidates;
pub(crate) mod chat;
pub(crate) mod completions;
mod fields;
mod number;
pub(crate) mod score;
mod tokens;

use std::sync::Arc;

use ntl_api::{FinishReason, Number, Usage};
use ntl_core::engine::{self, NumberOutcome};
use ntl_models::tokenizer::Tokenizer;
use serde::Serialize;

use crate::answer::{Piece, TokenCounts};
use crate::engine::ServedModel;
use crate::request::ReportOptions;
pub(crate) use fields::{WITHOUT_EFFECT, model_calibration};
use number::NumberFormat;

/// Writes answers in the style of one API.
pub(crate) trait AnswerAdapter: Send + 'static {
    type Whole: Serialize;
    type Chunk: Serialize;

    /// Tokens of a number's printed value.
    fn number_tokens(&self, outcome: &NumberOutcome) -> usize;

    /// A chunk of a stream with a piece of one choice.
    fn chunk(&mut self, piece: Piece) -> Self::Chunk;

    /// The chunk at the end of a stream with the token counts.
    fn usage_chunk(&self, counts: TokenCounts) -> Self::Chunk;

    /// The body of an answer that is not streamed.
    fn whole(&self, choices: Vec<Piece>, counts: TokenCounts) -> Self::Whole;
}

/// What both APIs need to write an answer.
struct AnswerContext {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    report: ReportOptions,
    /// How the number is shown, where one is asked for.
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
            id: format!("{id_prefix}-{}", uuid::Uuid::new_v4().simple()),
            created: crate::unix_seconds(),
            model: model.name.to_string(),
            tokenizer: Arc::clone(&model.tokenizer),
            report,
            number,
        }
    }

    /// Where the tokenizer cannot spell the value (too long for a Regression Transformer), each character counts as a token.
    fn number_tokens(&self, outcome: &NumberOutcome) -> usize {
        let printed = self.number.as_ref().map(|format| format.answer(outcome).text).unwrap_or_default();
        self.tokenizer.encode(&printed, false).map_or(printed.len(), |ids| ids.len())
    }

    /// The text of a piece, the printed number at its end, and the number itself.
    fn text_and_number(&self, piece: &mut Piece) -> (String, Option<Number>) {
        let mut text = std::mem::take(&mut piece.text);
        let shown =
            piece.number.take().zip(self.number.as_ref()).map(|(outcome, format)| format.show(&outcome));
        let number = shown.map(|(printed, number)| {
            text.push_str(&printed);
            number
        });
        (text, number)
    }
}

fn usage(counts: TokenCounts) -> Usage {
    let (prompt_tokens, completion_tokens) = (counts.prompt as u64, counts.completion as u64);
    Usage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
}

fn finish_reason(reason: engine::FinishReason) -> FinishReason {
    match reason {
        engine::FinishReason::Stop => FinishReason::Stop,
        engine::FinishReason::Length => FinishReason::Length,
    }
}

//! The pieces of a response, made of its events.

use std::collections::VecDeque;
use std::sync::Arc;

use ntl_api::MethodName;
use ntl_core::contract::{Event, FieldOutcome, FinishReason, NumberOutcome};

use crate::answer::{Assembler, Piece};
use crate::apis::AnswerWriter;
use crate::error::AppError;
use crate::served::RequestEvents;

pub(super) struct Pieces<A> {
    pub(super) writer: Arc<A>,
    pub(super) events: RequestEvents,
    pub(super) assembler: Assembler,
    /// Pieces of the last event.
    pending: VecDeque<Piece>,
}

impl<A: AnswerWriter> Pieces<A> {
    pub(super) fn new(writer: A, events: RequestEvents, assembler: Assembler) -> Self {
        Self { writer: Arc::new(writer), events, assembler, pending: VecDeque::new() }
    }

    /// Returns the next piece, or `None` after the last one. Nothing is lost if the future is dropped early.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, AppError> {
        while self.pending.is_empty() {
            let Some((prompt, event)) = self.events.next().await? else {
                if let Some(work) = self.events.engine_work() {
                    self.assembler.set_engine(work);
                }
                return Ok(None);
            };
            let pieces = match event {
                Event::Number(outcome) => self.number(prompt, &outcome).into_iter().collect(),
                Event::Field(field) => self.field(prompt, &field).into_iter().collect(),
                event => self.assembler.pieces(prompt, event),
            };
            self.pending.extend(pieces);
        }
        Ok(self.pending.pop_front())
    }

    /// Returns the piece with a field of a structured text, whose tokens are counted as those of the text.
    fn field(&mut self, prompt: usize, field: &FieldOutcome) -> Option<Piece> {
        let shown = self.writer.context().shown_field(field)?;
        if field.field.values.numbers().is_some() {
            self.events.count_number(MethodName::Tree, &field.outcome, 0);
        }
        self.assembler.field(prompt, field, shown)
    }

    /// Returns the piece with a number. The search's whole distribution, which may be large, is dropped.
    fn number(&mut self, prompt: usize, outcome: &NumberOutcome) -> Option<Piece> {
        let shown = self.writer.context().shown_number(outcome)?;
        // The engine reports the tokens of sampled answers.
        let tokens = if outcome.answers.is_some() { 0 } else { outcome.text_tokens + shown.tokens };
        self.events.count_number(shown.method, outcome, tokens);
        let reason = outcome.first_text_end.unwrap_or(FinishReason::Stop);
        Some(self.assembler.number(prompt, reason, shown, tokens))
    }
}

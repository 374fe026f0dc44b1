//! The pieces of a response, made of its events.

use std::collections::VecDeque;
use std::sync::Arc;

use ntl_api::MethodName;
use ntl_core::contract::{Event, FieldNumber, FinishReason, NumberOutcome};

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
            let Some((prompt, event)) = self.events.next().await? else { return Ok(None) };
            let pieces = match event {
                Event::Number(outcome) => self.number(prompt, &outcome).into_iter().collect(),
                Event::Field(number) => self.field(prompt, &number).into_iter().collect(),
                event => self.assembler.pieces(prompt, event),
            };
            self.pending.extend(pieces);
        }
        Ok(self.pending.pop_front())
    }

    /// Returns the piece with a number of a structured text, whose tokens are counted as those of the text.
    fn field(&mut self, prompt: usize, number: &FieldNumber) -> Option<Piece> {
        let shown = self.writer.context().shown_field(number)?;
        self.events.count_number(MethodName::Tree, &number.outcome, 0);
        self.assembler.field(prompt, number, shown)
    }

    /// Returns the piece with a number. The search's whole distribution, which may be large, is dropped.
    fn number(&mut self, prompt: usize, outcome: &NumberOutcome) -> Option<Piece> {
        let shown = self.writer.context().shown_number(outcome)?;
        let tokens = match &outcome.answers {
            Some(answers) => {
                self.events.count_engine(answers.usage);
                self.events.count_number(shown.method, outcome, 0);
                self.assembler.count_engine(answers.usage);
                0
            }
            None => {
                let tokens = outcome.text_tokens + shown.tokens;
                self.events.count_number(shown.method, outcome, tokens);
                tokens
            }
        };
        let reason = outcome.first_text_end.unwrap_or(FinishReason::Stop);
        Some(self.assembler.number(prompt, reason, shown, tokens))
    }
}

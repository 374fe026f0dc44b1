//! The pieces of a response, made of its events.

use crate::adapters::AnswerAdapter;
use crate::answer::{Assembler, Piece};
use crate::error::AppError;
use crate::served::RequestEvents;

pub(super) struct Pieces<A> {
    pub(super) adapter: A,
    pub(super) events: RequestEvents,
    pub(super) assembler: Assembler,
}

impl<A: AnswerAdapter> Pieces<A> {
    /// Returns the next piece, or `None` after the last one. Nothing is lost if the future is dropped early.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, AppError> {
        while let Some((prompt, event)) = self.events.next().await? {
            let Some(piece) = self.assembler.piece(prompt, event) else { continue };
            if let Some(outcome) = &piece.number
                && let Some((method, printed)) = self.adapter.context().printed_number(outcome)
            {
                let tokens = outcome.text_tokens + printed;
                self.assembler.count_number(tokens);
                self.events.count_number(method, outcome, tokens);
            }
            return Ok(Some(piece));
        }
        Ok(None)
    }
}

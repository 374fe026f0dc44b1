//! Makes a piece of an event and counts its tokens.

use ntl_core::engine::Event;

use crate::adapters::AnswerAdapter;
use crate::answer::{Assembler, Piece};
use crate::engine::RequestEvents;

/// The piece of an event. A number is counted as the tokens of its printed value and of the texts before it.
pub(super) fn piece(
    adapter: &impl AnswerAdapter,
    assembler: &mut Assembler,
    events: &RequestEvents,
    prompt: usize,
    event: Event,
) -> Option<Piece> {
    let piece = assembler.piece(prompt, event)?;
    if let Some(outcome) = &piece.number {
        let tokens = outcome.text_tokens + adapter.number_tokens(outcome);
        assembler.count_number(tokens);
        events.count_number(tokens);
    }
    Some(piece)
}

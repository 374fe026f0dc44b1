//! Pieces of choices, joined.

use super::Piece;

/// The choices of an answer while their pieces arrive.
pub(crate) struct Transcript(Vec<Piece>);

impl Transcript {
    pub(crate) fn new(prompts: usize, choices_per_prompt: u32) -> Self {
        let count = prompts as u64 * u64::from(choices_per_prompt);
        Self((0..count).map(|index| Piece { index, ..Piece::default() }).collect())
    }

    pub(crate) fn add(&mut self, piece: Piece) {
        self.0[piece.index as usize].append(piece);
    }

    /// The choices by index.
    pub(crate) fn into_choices(self) -> Vec<Piece> {
        self.0
    }
}

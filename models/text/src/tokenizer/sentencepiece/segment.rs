//! Segments a text into its most probable pieces (Viterbi search over a unigram model).
//!
//! Scores are single-precision sums from the left, and a later candidate must have a strictly higher score.
//! SentencePiece 0.2.2 and later compute the same. Rounding decides between equally good segmentations such
//! as `0`+`00` and `00`+`0`. Earlier releases compare unrounded sums, so they break some of these ties
//! differently.

use super::index::PrefixIndex;
use super::proto::{PieceType, StoredPiece, of_kind};

/// Difference between the scores of the rarest piece and of an unknown character.
const UNKNOWN_PENALTY: f32 = 10.0;

#[derive(Debug)]
pub(super) struct Segmenter {
    index: PrefixIndex,
    /// Scores of all pieces by id.
    scores: Vec<f32>,
    unknown: u32,
    unknown_score: f32,
}

/// The best segmentation up to a position: its last piece and its score.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: usize,
    id: u32,
    score: f32,
}

impl Segmenter {
    pub(super) fn new(pieces: &[StoredPiece]) -> Result<Self, String> {
        let mut unknown = of_kind(pieces, PieceType::Unknown).map(|(id, _)| id);
        let (Some(unknown), None) = (unknown.next(), unknown.next()) else {
            return Err("it does not have exactly one unknown piece".into());
        };
        let normal = of_kind(pieces, PieceType::Normal).map(|(_, piece)| piece.score());
        let lowest = normal.fold(f32::MAX, f32::min);
        let known = of_kind(pieces, PieceType::Normal).chain(of_kind(pieces, PieceType::UserDefined));
        Ok(Self {
            index: PrefixIndex::new(known.map(|(id, piece)| (piece.piece().to_owned(), id))),
            scores: pieces.iter().map(score).collect(),
            unknown,
            unknown_score: lowest - UNKNOWN_PENALTY,
        })
    }

    pub(super) fn unknown(&self) -> u32 {
        self.unknown
    }

    /// Returns the pieces of `text` in order, each with its id. Each unknown character is a piece.
    pub(super) fn segment<'a>(&self, text: &'a str) -> Vec<(&'a str, u32)> {
        let mut best: Vec<Option<Step>> = vec![None; text.len() + 1];
        for (from, character) in text.char_indices() {
            let so_far = best[from].map_or(0.0, |step| step.score);
            let mut single = false;
            self.index.prefixes(&text[from..], |length, id| {
                single |= length == character.len_utf8();
                let score = self.scores.get(id as usize).copied().unwrap_or(self.unknown_score);
                offer(&mut best[from + length], Step { from, id, score: score + so_far });
            });
            if !single {
                let step = Step { from, id: self.unknown, score: self.unknown_score + so_far };
                offer(&mut best[from + character.len_utf8()], step);
            }
        }
        let mut cut = Vec::new();
        let mut end = text.len();
        while let Some(step) = best[end] {
            cut.push((&text[step.from..end], step.id));
            end = step.from;
        }
        cut.reverse();
        cut
    }
}

/// Returns the score of a piece. User-defined pieces are preferred to trained ones, which have negative
/// scores, and the longer to the shorter.
fn score(piece: &StoredPiece) -> f32 {
    const PER_BYTE: f64 = 0.1;
    match piece.kind() {
        PieceType::UserDefined => (PER_BYTE * (piece.piece().len() as f64 - 1.0)) as f32,
        _ => piece.score(),
    }
}

/// Keeps the better of two segmentations up to the same position, and the earlier one on a tie.
fn offer(best: &mut Option<Step>, step: Step) {
    if best.is_none_or(|best| step.score > best.score) {
        *best = Some(step);
    }
}

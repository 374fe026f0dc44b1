//! Segments a text into its most probable pieces (Viterbi search over a unigram model).
//!
//! Scores are compared and kept in the precision of
//! <https://github.com/google/sentencepiece/blob/v0.2.0/src/unigram_model.cc>, because rounding decides between equally good
//! segmentations such as `0`+`00` and `00`+`0`.

use super::index::PrefixIndex;
use super::proto::{Piece, PieceType};

/// The score of an unknown character is this much below that of the rarest piece.
const UNKNOWN_PENALTY: f32 = 10.0;

#[derive(Debug)]
pub(super) struct Segmenter {
    index: PrefixIndex,
    scores: Vec<Score>,
    unknown: u32,
    unknown_score: f32,
}

#[derive(Debug, Clone, Copy)]
enum Score {
    Fixed(f32),
    /// User-defined pieces win over any other segmentation.
    ByLength(f32),
}

/// The best segmentation up to a position: its last piece, and its score.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: usize,
    id: u32,
    score: f32,
}

impl Segmenter {
    pub(super) fn new(pieces: &[Piece]) -> Result<Self, String> {
        let of_kind = |wanted| (0..).zip(pieces).filter(move |(_, piece)| piece.kind() == wanted);
        let mut unknown = of_kind(PieceType::Unknown).map(|(id, _)| id);
        let (Some(unknown), None) = (unknown.next(), unknown.next()) else {
            return Err("it does not have exactly one unknown piece".into());
        };
        let normal = || of_kind(PieceType::Normal).map(|(_, piece)| piece.score());
        let (lowest, highest) =
            (normal().fold(f32::MAX, f32::min), normal().fold(f32::MIN_POSITIVE, f32::max));
        let cut = of_kind(PieceType::Normal).chain(of_kind(PieceType::UserDefined));
        let score = |piece: &Piece| match piece.kind() {
            PieceType::UserDefined => Score::ByLength(highest),
            _ => Score::Fixed(piece.score()),
        };
        Ok(Self {
            index: PrefixIndex::new(cut.map(|(id, piece)| (piece.piece().to_owned(), id))),
            scores: pieces.iter().map(score).collect(),
            unknown,
            unknown_score: lowest - UNKNOWN_PENALTY,
        })
    }

    pub(super) fn unknown(&self) -> u32 {
        self.unknown
    }

    /// The pieces of `text` in order, each with its id. Each unknown character is a piece.
    pub(super) fn segment<'a>(&self, text: &'a str) -> Vec<(&'a str, u32)> {
        let mut best: Vec<Option<Step>> = vec![None; text.len() + 1];
        for (from, character) in text.char_indices() {
            let so_far = best[from].map_or(0.0, |step| step.score);
            let mut single = false;
            self.index.prefixes(&text[from..], |length, id| {
                single |= length == character.len_utf8();
                offer(&mut best[from + length], from, id, self.score(id, length) + f64::from(so_far));
            });
            if !single {
                let score = f64::from(self.unknown_score + so_far);
                offer(&mut best[from + character.len_utf8()], from, self.unknown, score);
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

    fn score(&self, id: u32, length: usize) -> f64 {
        match self.scores.get(id as usize) {
            Some(Score::Fixed(score)) => f64::from(*score),
            Some(Score::ByLength(highest)) => length as f64 * f64::from(*highest) - 0.1,
            None => f64::from(self.unknown_score),
        }
    }
}

/// Compares in double precision with the stored single precision, as the original does.
fn offer(place: &mut Option<Step>, from: usize, id: u32, score: f64) {
    if place.is_none_or(|step| score > f64::from(step.score)) {
        *place = Some(Step { from, id, score: score as f32 });
    }
}

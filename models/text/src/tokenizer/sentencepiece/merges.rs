//! Segments a text by merging neighbouring parts, the pair with the best score first (BPE).
//!
//! It behaves like <https://github.com/google/sentencepiece/blob/v0.2.0/src/bpe_model.cc>: the leftmost of
//! equally good pairs is merged first, and user-defined pieces are never merged.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::index::PrefixIndex;
use super::proto::{PieceType, StoredPiece, of_kind};

#[derive(Debug)]
pub(super) struct Merger {
    /// Ids and scores of the pieces that merges may result in.
    pieces: HashMap<String, (u32, f32)>,
    /// User-defined pieces.
    fixed: PrefixIndex,
}

/// A part of the text, between two others.
struct Part {
    start: usize,
    /// The start itself if the part was merged into the one before it.
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
    is_fixed: bool,
}

impl Part {
    /// Returns whether the part was merged into the one before it.
    fn is_merged(&self) -> bool {
        self.end == self.start
    }
}

/// Two neighbouring parts that form a piece.
struct Pair {
    score: f32,
    left: Reverse<usize>,
    right: usize,
    /// Ends of the text that the parts had when the pair was found.
    start: usize,
    end: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| self.left.cmp(&other.left))
    }
}
impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Pair {}

impl Merger {
    pub(super) fn new(pieces: &[StoredPiece]) -> Result<Self, String> {
        if pieces.iter().any(|piece| piece.kind() == PieceType::Unused) {
            return Err("BPE models with unused pieces are not supported".into());
        }
        let mut merged = HashMap::new();
        for (id, piece) in of_kind(pieces, PieceType::Normal).chain(of_kind(pieces, PieceType::UserDefined)) {
            merged.insert(piece.piece().to_owned(), (id, piece.score()));
        }
        let fixed = of_kind(pieces, PieceType::UserDefined);
        let fixed = PrefixIndex::new(fixed.map(|(id, piece)| (piece.piece().to_owned(), id)));
        Ok(Self { pieces: merged, fixed })
    }

    /// Returns the pieces of `text` in order, each with its id, or `None` for an unknown character.
    pub(super) fn segment<'a>(&self, text: &'a str) -> Vec<(&'a str, Option<u32>)> {
        let mut parts = self.parts(text);
        let mut pairs: BinaryHeap<Pair> =
            (1..parts.len()).filter_map(|right| self.pair(text, &parts, right - 1, right)).collect();
        while let Some(Pair { left: Reverse(left), right, start, end, .. }) = pairs.pop() {
            let is_outdated = parts[left].is_merged() || parts[right].is_merged();
            if is_outdated || (parts[left].start, parts[right].end) != (start, end) {
                continue;
            }
            parts[left].end = end;
            parts[right].end = parts[right].start;
            parts[left].next = parts[right].next;
            if let Some(next) = parts[left].next {
                parts[next].previous = Some(left);
                pairs.extend(self.pair(text, &parts, left, next));
            }
            if let Some(previous) = parts[left].previous {
                pairs.extend(self.pair(text, &parts, previous, left));
            }
        }
        let mut segments = Vec::new();
        for part in parts.iter().filter(|part| !part.is_merged()) {
            let piece = &text[part.start..part.end];
            segments.push((piece, self.pieces.get(piece).map(|(id, _)| *id)));
        }
        segments
    }

    /// Splits a text into user-defined pieces and characters.
    fn parts(&self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut start = 0;
        while let Some(character) = text[start..].chars().next() {
            let fixed = self.fixed.longest(&text[start..]).map(|(length, _)| length);
            let end = start + fixed.unwrap_or(character.len_utf8());
            let index = parts.len();
            let previous = index.checked_sub(1);
            let next = (end < text.len()).then_some(index + 1);
            parts.push(Part { start, end, previous, next, is_fixed: fixed.is_some() });
            start = end;
        }
        parts
    }

    fn pair(&self, text: &str, parts: &[Part], left: usize, right: usize) -> Option<Pair> {
        if parts[left].is_fixed || parts[right].is_fixed {
            return None;
        }
        let (start, end) = (parts[left].start, parts[right].end);
        let (_, score) = *self.pieces.get(&text[start..end])?;
        Some(Pair { score, left: Reverse(left), right, start, end })
    }
}

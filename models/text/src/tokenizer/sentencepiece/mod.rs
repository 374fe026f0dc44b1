//! SentencePiece models, unigram (`spiece.model`) or BPE. Segments text exactly like version 0.2.2 and later
//! of the C++ library.
//!
//! The `tokenizers` crate is not used: it splits at every space first and sums scores in double precision,
//! which gives other ids, and it panics on a malformed model file. `slow.rs` handles added and special
//! tokens.

mod index;
mod merges;
mod normalizer;
pub(super) mod proto;
mod segment;

use std::collections::HashMap;

use prost::Message;

use merges::Merger;
use normalizer::Normalizer;
use proto::PieceType;
use segment::Segmenter;

use super::pieces::{Piece, PieceKind, Segment, named_byte};

pub(super) use index::PrefixIndex;

const UNIGRAM: i32 = 1;
const BPE: i32 = 2;

#[derive(Debug)]
pub(super) struct SentencePiece {
    pieces: Vec<Piece>,
    ids: HashMap<String, u32>,
    normalizer: Normalizer,
    segmenter: Segmenter,
    /// Replaces the unigram search in a BPE model.
    merger: Option<Merger>,
    /// Ids of the 256 byte pieces, if unknown characters are encoded as bytes.
    bytes: Option<Vec<u32>>,
}

impl SentencePiece {
    pub(super) fn parse(file: &[u8]) -> Result<Self, String> {
        let model = proto::ModelProto::decode(file).map_err(|error| error.to_string())?;
        // Both follow the pieces in the file. Without this check, a file that is cut off between two pieces
        // would be accepted.
        let (Some(trainer), Some(normalizer)) = (&model.trainer, &model.normalizer) else {
            return Err("it has no trainer or normalizer specification, it may be cut off".into());
        };
        let merger = match trainer.model_type.unwrap_or(UNIGRAM) {
            UNIGRAM => None,
            BPE => Some(Merger::new(&model.pieces)?),
            _ => return Err("it is neither a unigram nor a BPE model".into()),
        };
        let pieces = model.pieces.iter().enumerate().map(read_piece).collect::<Result<Vec<_>, _>>()?;
        let ids = unique_ids(&pieces)?;
        let fixed = model.pieces.iter().filter(|piece| piece.kind() == PieceType::UserDefined);
        let fixed = PrefixIndex::new(fixed.map(|piece| (piece.piece().to_owned(), 0)));
        let space_last = trainer.treat_whitespace_as_suffix.unwrap_or(false);
        Ok(Self {
            normalizer: Normalizer::new(normalizer, space_last, fixed)?,
            segmenter: Segmenter::new(&model.pieces)?,
            merger,
            bytes: trainer.byte_fallback.unwrap_or(false).then(|| byte_ids(&ids)).transpose()?,
            pieces,
            ids,
        })
    }

    /// The pieces by id.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(super) fn growth(&self) -> usize {
        self.normalizer.growth()
    }

    pub(super) fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// Segments a text. Adjacent unknown characters become one token.
    pub(super) fn encode(&self, text: &str) -> Vec<Segment> {
        let normalized = self.normalizer.normalize(text);
        let unknown = self.segmenter.unknown();
        let mut tokens: Vec<Segment> = Vec::new();
        let segments = match &self.merger {
            None => self.segmenter.segment(&normalized),
            Some(merger) => {
                let known = merger.segment(&normalized).into_iter();
                known.map(|(piece, id)| (piece, id.unwrap_or(unknown))).collect()
            }
        };
        for (piece, id) in segments {
            if let (true, Some(bytes)) = (id == unknown, &self.bytes) {
                let ids = piece.bytes().filter_map(|byte| bytes.get(usize::from(byte)).copied());
                tokens.extend(ids.map(|id| Segment { id, text: self.name(id) }));
                continue;
            }
            match tokens.last_mut() {
                Some(last) if id == unknown && last.id == unknown => last.text.push_str(piece),
                _ => tokens.push(Segment { id, text: piece.to_owned() }),
            }
        }
        tokens
    }

    fn name(&self, id: u32) -> String {
        self.pieces.get(id as usize).map(|piece| piece.name.clone()).unwrap_or_default()
    }
}

fn read_piece((id, piece): (usize, &proto::StoredPiece)) -> Result<Piece, String> {
    let name = piece.piece();
    if name.is_empty() {
        return Err(format!("piece {id} is empty"));
    }
    let kind = match piece.kind() {
        PieceType::Normal | PieceType::UserDefined | PieceType::Unused => PieceKind::Text,
        PieceType::Unknown | PieceType::Control => PieceKind::Special,
        PieceType::Byte => {
            PieceKind::Byte(named_byte(name).ok_or_else(|| format!("piece {id} is not the name of a byte"))?)
        }
    };
    Ok(Piece { name: name.to_owned(), kind })
}

fn unique_ids(pieces: &[Piece]) -> Result<HashMap<String, u32>, String> {
    let mut ids = HashMap::with_capacity(pieces.len());
    for (id, piece) in (0..).zip(pieces) {
        if let Some(first) = ids.insert(piece.name.clone(), id) {
            return Err(format!("pieces {first} and {id} are the same"));
        }
    }
    Ok(ids)
}

fn byte_ids(ids: &HashMap<String, u32>) -> Result<Vec<u32>, String> {
    let mut byte_ids = Vec::new();
    for byte in 0..=u8::MAX {
        let name = format!("<0x{byte:02X}>");
        let Some(id) = ids.get(&name) else {
            return Err(format!("it writes unknown characters as bytes but lacks {name}"));
        };
        byte_ids.push(*id);
    }
    Ok(byte_ids)
}

#[cfg(test)]
mod tests;

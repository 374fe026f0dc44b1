//! The T5 tokenizer that transformers calls slow: `spiece.model` and added tokens.
//!
//! It differs from the fast one in two ways: it does not add a second `</s>` to a text that ends with one,
//! and decoded texts have no white space at their ends. `mod.rs` splits digits, and `cleanup` removes spaces.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::{CheckpointFiles, LoadError};

use super::config::{AddedToken, CONFIG_FILE, TokenizerConfig};
use super::pieces::{Piece, PieceKind, PieceTable, Segment, Spelling};
use super::python;
use super::sentencepiece::{PrefixIndex, SentencePiece};

pub(super) const MODEL_FILE: &str = "spiece.model";

#[derive(Debug)]
pub(super) struct SlowTokenizer {
    model: SentencePiece,
    /// Added tokens, at which a text is split before it reaches the model.
    added: PrefixIndex,
    eos: Option<u32>,
}

impl SlowTokenizer {
    pub(super) fn open(
        files: &CheckpointFiles,
        config: &TokenizerConfig,
    ) -> Result<(Self, PieceTable), LoadError> {
        if !config.reads_sentencepiece() {
            let reason = "this class is only read from a tokenizer.json, which is missing";
            return Err(LoadError::field(files.name_of(CONFIG_FILE), "tokenizer_class", reason));
        }
        let model = read_model(files, MODEL_FILE)?;
        let added = added_tokens(&model, config);
        let table = piece_table(&model, &added)
            .map_err(|reason| LoadError::malformed(files.name_of(MODEL_FILE), reason))?;
        let eos = table.id(config.named.get("eos_token").map_or("</s>", String::as_str));
        let added = PrefixIndex::new(added.into_iter().map(|(name, token)| (name, token.id)));
        Ok((Self { model, added, eos }, table))
    }

    /// Opens a SentencePiece model. Texts are segmented as they are.
    pub(super) fn without_special_tokens(
        files: &CheckpointFiles,
        file: &str,
    ) -> Result<(Self, PieceTable), LoadError> {
        let model = read_model(files, file)?;
        let table = piece_table(&model, &BTreeMap::new())
            .map_err(|reason| LoadError::malformed(files.name_of(file), reason))?;
        Ok((Self { model, added: PrefixIndex::new([]), eos: None }, table))
    }

    pub(super) fn growth(&self) -> usize {
        self.model.growth()
    }

    /// Splits `text` at added tokens, and segments the parts between them into pieces.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Vec<Segment> {
        let mut tokens = Vec::new();
        let (mut start, mut at) = (0, 0);
        while let Some(character) = text[at..].chars().next() {
            let Some((length, id)) = self.added.longest(&text[at..]) else {
                at += character.len_utf8();
                continue;
            };
            // The model treats each part as a whole text, which begins with a space mark.
            tokens.extend(self.model.encode(&text[start..at]));
            tokens.push(Segment { id, text: text[at..at + length].to_owned() });
            at += length;
            start = at;
        }
        tokens.extend(self.model.encode(&text[start..]));
        if let (true, Some(eos)) = (add_special_tokens, self.eos)
            && tokens.last().is_none_or(|last| last.id != eos)
        {
            tokens.push(Segment { id: eos, text: String::new() });
        }
        tokens
    }
}

fn read_model(files: &CheckpointFiles, file: &str) -> Result<SentencePiece, LoadError> {
    SentencePiece::parse(&files.require(file)?)
        .map_err(|reason| LoadError::malformed(files.name_of(file), reason))
}

/// Decodes `ids`: the parts between added tokens, each without white space at its ends, are joined by spaces.
/// As in transformers, the last part counts even if it is empty.
pub(super) fn decode(table: &PieceTable, ids: &[u32]) -> String {
    let mut parts = Vec::new();
    let mut part: Vec<u8> = Vec::new();
    let mut open = false;
    for &id in ids {
        let (Some(piece), Some(bytes)) = (table.get(id), table.bytes(id)) else { continue };
        match piece.kind {
            PieceKind::Special => {}
            PieceKind::Added => {
                parts.push(stripped(&part));
                parts.retain(|part| !part.is_empty());
                parts.push(piece.name.clone());
                (part, open) = (Vec::new(), false);
            }
            PieceKind::Text | PieceKind::Byte(_) => {
                part.extend(bytes);
                open = true;
            }
        }
    }
    if open {
        parts.push(stripped(&part));
    }
    parts.join(" ")
}

pub(super) fn stripped(part: &[u8]) -> String {
    String::from_utf8_lossy(part).trim_matches(python::is_space).to_owned()
}

/// Returns the tokens that the files add, the special tokens that are pieces of the model, and the
/// `<extra_id_*>` tokens if no file lists them, as in old checkpoints. Those follow the pieces in descending
/// order, but skip ids that a file claims.
fn added_tokens(model: &SentencePiece, config: &TokenizerConfig) -> BTreeMap<String, AddedToken> {
    let mut added = config.added.clone();
    let usual = ["</s>", "<pad>", "<unk>"].map(str::to_owned);
    for name in config.special.iter().chain(&usual) {
        if let Some(id) = model.id(name) {
            added.entry(name.clone()).or_insert(AddedToken { id, special: true });
        }
    }
    let first_extra = extra_name(0);
    if !added.contains_key(&first_extra) && model.id(&first_extra).is_none() {
        let claimed: BTreeSet<u32> = added.values().map(|token| token.id).collect();
        let sentinels = (0..config.extra_ids).rev().zip((0..).skip(model.pieces().len()));
        for (number, id) in sentinels.filter(|(_, id)| !claimed.contains(id)) {
            added.insert(extra_name(number), AddedToken { id, special: true });
        }
    }
    added
}

fn extra_name(number: u32) -> String {
    format!("<extra_id_{number}>")
}

fn piece_table(model: &SentencePiece, added: &BTreeMap<String, AddedToken>) -> Result<PieceTable, String> {
    let pieces = (0..).zip(model.pieces().iter().cloned());
    let added = added.iter().map(|(name, token)| {
        let kind = if token.special { PieceKind::Special } else { PieceKind::Added };
        (token.id, Piece { name: name.clone(), kind })
    });
    PieceTable::new(pieces.chain(added), Spelling::SpaceMark)
}

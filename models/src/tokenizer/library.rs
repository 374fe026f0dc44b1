//! Runs a `tokenizer.json` with the `tokenizers` crate. The file's post-processor adds special tokens at the ends.

use serde_json::Value;

use crate::checkpoint::{CheckpointFiles, LoadError};

use super::EncodeError;
use super::pieces::{Piece, PieceKind, PieceTable, Segment, Spelling, named_byte};

pub(super) const LIBRARY_FILE: &str = "tokenizer.json";

pub(super) struct LibraryTokenizer {
    inner: tokenizers::Tokenizer,
}

impl LibraryTokenizer {
    pub(super) fn open(files: &CheckpointFiles) -> Result<(Self, PieceTable), LoadError> {
        let bytes = files.require(LIBRARY_FILE)?;
        let malformed = |reason: String| LoadError::malformed(files.name_of(LIBRARY_FILE), reason);
        let mut inner =
            tokenizers::Tokenizer::from_bytes(&*bytes).map_err(|error| malformed(error.to_string()))?;
        // The file may contain limits of the training run; the server has its own.
        inner.with_truncation(None).map_err(|error| malformed(error.to_string()))?;
        inner.with_padding(None);
        let table = piece_table(&inner).map_err(malformed)?;
        Ok((Self { inner }, table))
    }

    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Segment>, EncodeError> {
        let encoding = self.inner.encode_fast(text, add_special_tokens).map_err(EncodeError::Library)?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_tokens());
        Ok(tokens.map(|(&id, text)| Segment { id, text: text.clone() }).collect())
    }

    /// The text of `ids` without special tokens; `None` when the file's decoder fails.
    pub(super) fn decode(&self, ids: &[u32]) -> Option<String> {
        self.inner.decode(ids, true).ok()
    }
}

fn piece_table(inner: &tokenizers::Tokenizer) -> Result<PieceTable, String> {
    let decoder = serde_json::to_value(inner.get_decoder()).map_err(|error| error.to_string())?;
    let bytes = mentions(&decoder, "ByteFallback");
    let spelling = if mentions(&decoder, "ByteLevel") {
        Spelling::ByteLevel
    } else if mentions(&decoder, "Metaspace") || mentions(&decoder, "▁") {
        Spelling::SpaceMark
    } else {
        Spelling::Plain
    };
    let pieces = inner.get_vocab(false).into_iter().map(|(name, id)| {
        let byte = named_byte(&name).filter(|_| bytes);
        (id, Piece { name, kind: byte.map_or(PieceKind::Text, PieceKind::Byte) })
    });
    let added = inner.get_added_tokens_decoder().into_iter().map(|(id, token)| {
        let kind = if token.special { PieceKind::Special } else { PieceKind::Added };
        (id, Piece { name: token.content, kind })
    });
    PieceTable::new(pieces.chain(added), spelling)
}

/// Whether `word` is a string anywhere in the decoder's description: the type of a part, or a pattern that it replaces.
fn mentions(description: &Value, word: &str) -> bool {
    match description {
        Value::String(text) => text == word,
        Value::Array(items) => items.iter().any(|item| mentions(item, word)),
        Value::Object(fields) => fields.values().any(|field| mentions(field, word)),
        _ => false,
    }
}

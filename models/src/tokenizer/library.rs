//! Runs a `tokenizer.json` with the `tokenizers` crate. The file's post-processor adds special tokens at the ends.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{CheckpointFiles, LoadError};

use super::EncodeError;
use super::pieces::{Piece, PieceKind, PieceTable, Segment, Spelling, check_name, named_byte};

/// Most times that replacements may make a text longer. Real ones replace a character by one, or by a few.
const GROWTH_MAX: usize = 64;

pub(super) const LIBRARY_FILE: &str = "tokenizer.json";

pub(super) struct LibraryTokenizer {
    inner: tokenizers::Tokenizer,
}

impl LibraryTokenizer {
    pub(super) fn open(files: &CheckpointFiles) -> Result<(Self, PieceTable), LoadError> {
        let bytes = files.require(LIBRARY_FILE)?;
        let malformed = |reason: String| LoadError::malformed(files.name_of(LIBRARY_FILE), reason);
        check_added(&bytes).map_err(malformed)?;
        let mut inner =
            tokenizers::Tokenizer::from_bytes(&*bytes).map_err(|error| malformed(error.to_string()))?;
        // The file may contain limits of the training run; the server has its own.
        inner.with_truncation(None).map_err(|error| malformed(error.to_string()))?;
        inner.with_padding(None);
        check_growth("normalizer", inner.get_normalizer()).map_err(malformed)?;
        check_growth("decoder", inner.get_decoder()).map_err(malformed)?;
        let table = piece_table(&inner).map_err(malformed)?;
        Ok((Self { inner }, table))
    }

    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Segment>, EncodeError> {
        // The crate panics where a regular expression of the file needs too many steps.
        let encode = AssertUnwindSafe(|| self.inner.encode_fast(text, add_special_tokens));
        let encoding = catch_unwind(encode).unwrap_or_else(|_| Err("the tokenizer failed".into()));
        let encoding = encoding.map_err(EncodeError::Library)?;
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

/// Checks the added tokens before the crate builds its search for them, which takes minutes for a token of megabytes.
fn check_added(file: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<AddedToken>,
    }
    #[derive(Deserialize)]
    struct AddedToken {
        id: u32,
        content: String,
    }
    let file: File = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    file.added_tokens.iter().try_for_each(|token| check_name(token.id, &token.content))
}

/// Refuses replacements that would make a huge text of a small one.
fn check_growth(field: &str, part: Option<&impl Serialize>) -> Result<(), String> {
    let description = serde_json::to_value(part).map_err(|error| error.to_string())?;
    let growth = growth(&description);
    if growth > GROWTH_MAX {
        return Err(format!("field `{field}`: its replacements make texts {growth} times as long"));
    }
    Ok(())
}

/// How many times as long a text may become.
fn growth(description: &Value) -> usize {
    let characters = |value: &Value| value.as_str().map(|text| text.chars().count());
    let parts = ["normalizers", "decoders"].into_iter().find_map(|name| description[name].as_array());
    if let Some(parts) = parts {
        return parts.iter().map(growth).fold(1, usize::saturating_mul);
    }
    // A regular expression may match one character.
    let replaced = characters(&description["pattern"]["String"]).unwrap_or(1).max(1);
    characters(&description["content"]).unwrap_or(1).div_ceil(replaced).max(1)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replacements_that_multiply_each_other_are_refused() {
        let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
        let llama = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]});
        let bomb = json!({"type": "Sequence", "normalizers": vec![replace("a", "aaaaaaaaaa"); 9]});
        let nested = json!({"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": vec![replace("a", "aaa"); 5]}]});
        assert!(check_growth("normalizer", None::<&Value>).is_ok());
        assert!(check_growth("normalizer", Some(&llama)).is_ok());
        for (field, part, times) in [("normalizer", &bomb, "1000000000"), ("decoder", &nested, "243")] {
            let error = check_growth(field, Some(part)).unwrap_err();
            assert_eq!(error, format!("field `{field}`: its replacements make texts {times} times as long"));
        }
        assert_eq!(growth(&json!({"type": "Replace", "pattern": {"Regex": "."}, "content": "xyz"})), 3);
    }

    #[test]
    fn a_regular_expression_that_takes_too_many_steps_is_an_error_of_the_text() {
        let file = json!({
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {
                "type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false
            },
            "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
        });
        let files = CheckpointFiles::memory("m", [(LIBRARY_FILE.to_owned(), file.to_string().into_bytes())]);
        let (tokenizer, _) = LibraryTokenizer::open(&files).unwrap();
        assert_eq!(tokenizer.encode("a", false).unwrap().len(), 1);
        let error = tokenizer.encode(&("a".repeat(60) + "b"), false).unwrap_err();
        assert_eq!(error.to_string(), "text cannot be tokenized");
    }

    #[test]
    fn a_token_of_megabytes_is_refused() {
        let piece = |name: String| (5, Piece { name, kind: PieceKind::Added });
        assert!(PieceTable::new([piece("y".repeat(1000))], Spelling::Plain).is_ok());
        let error = PieceTable::new([piece("y".repeat(5_000_000))], Spelling::Plain).unwrap_err();
        assert_eq!(error, "token 5 has 5000000 bytes, at most 16384 are accepted");
        let file = json!({"added_tokens": [{"id": 7, "content": "y".repeat(20_000)}]}).to_string();
        let error = check_added(file.as_bytes()).unwrap_err();
        assert_eq!(error, "token 7 has 20000 bytes, at most 16384 are accepted");
    }
}

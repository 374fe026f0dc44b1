//! Runs a `tokenizer.json` with the `tokenizers` crate. The file's post-processor adds special tokens at both
//! ends.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{CheckpointFiles, LoadError};

use super::EncodeError;
use super::pieces::{Piece, PieceKind, PieceTable, Segment, Spelling, check_name, named_byte};

/// Maximum factor by which replacements may make a text longer. Real ones replace a character with one or a
/// few.
const GROWTH_MAX: usize = 64;

/// Maximum number of merges of a BPE model. Vocabularies of 262,000 tokens have 580,000.
const MERGES_MAX: usize = 1_000_000;

/// Maximum number of added tokens. Real tokenizers have up to 7,000.
const ADDED_MAX: usize = 50_000;

pub(super) const LIBRARY_FILE: &str = "tokenizer.json";

pub(super) struct LibraryTokenizer {
    inner: tokenizers::Tokenizer,
}

impl LibraryTokenizer {
    pub(super) fn open(files: &CheckpointFiles) -> Result<(Self, PieceTable), LoadError> {
        let bytes = files.require(LIBRARY_FILE)?;
        let malformed = |reason: String| LoadError::malformed(files.name_of(LIBRARY_FILE), reason);
        check_tables(&bytes).map_err(malformed)?;
        // The crate panics on some files, such as one whose normalizer has rules of the wrong type.
        let opened = catch_unwind(|| open_inner(&bytes));
        let opened = opened.unwrap_or_else(|_| Err("the tokenizers crate cannot read it".to_owned()));
        let (inner, table) = opened.map_err(malformed)?;
        Ok((Self { inner }, table))
    }

    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Segment>, EncodeError> {
        // The crate panics if a regular expression of the file needs too many steps.
        let encode = AssertUnwindSafe(|| self.inner.encode_fast(text, add_special_tokens));
        let encoding = catch_unwind(encode).unwrap_or_else(|_| Err("the tokenizer failed".into()));
        let encoding = encoding.map_err(EncodeError::Library)?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_tokens());
        Ok(tokens.map(|(&id, text)| Segment { id, text: text.clone() }).collect())
    }

    /// Decodes `ids` without special tokens. Returns `None` if the file's decoder fails.
    pub(super) fn decode(&self, ids: &[u32]) -> Option<String> {
        // The crate panics if a file strips more characters than a token has.
        catch_unwind(AssertUnwindSafe(|| self.inner.decode(ids, true))).ok()?.ok()
    }
}

fn open_inner(file: &[u8]) -> Result<(tokenizers::Tokenizer, PieceTable), String> {
    let mut inner = tokenizers::Tokenizer::from_bytes(file).map_err(|error| error.to_string())?;
    // The file may contain limits of the training run. The server has its own limits.
    inner.with_truncation(None).map_err(|error| error.to_string())?;
    inner.with_padding(None);
    check_growth("normalizer", inner.get_normalizer())?;
    check_growth("pre_tokenizer", inner.get_pre_tokenizer())?;
    check_growth("decoder", inner.get_decoder())?;
    let table = piece_table(&inner)?;
    Ok((inner, table))
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

/// Checks added tokens and merges before the crate builds its tables from them, which takes minutes for a
/// token of megabytes, and needs 700 bytes per merge.
fn check_tables(file: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<AddedToken>,
        #[serde(default)]
        model: Option<Model>,
        #[serde(default)]
        normalizer: Value,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(default)]
        merges: Vec<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct AddedToken {
        id: u32,
        content: String,
    }
    let file: File = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    check_rules(&file.normalizer)?;
    let merges = file.model.map_or(0, |model| model.merges.len());
    for (field, count, max) in
        [("model.merges", merges, MERGES_MAX), ("added_tokens", file.added_tokens.len(), ADDED_MAX)]
    {
        if count > max {
            return Err(format!("field `{field}`: it has {count} entries, at most {max} are accepted"));
        }
    }
    file.added_tokens.iter().try_for_each(|token| check_name(token.id, &token.content))
}

/// Checks that the rules (base64) of every `Precompiled` normalizer are as long as they claim, because the
/// crate allocates the claimed size.
fn check_rules(normalizer: &Value) -> Result<(), String> {
    const FIELD: &str = "precompiled_charsmap";
    if let Some(text) = normalizer[FIELD].as_str() {
        // The first 32 of the 36 bits of six characters, little-endian.
        let first: Option<Vec<u64>> = text.bytes().take(6).map(base64_digit).collect();
        let bits = first.unwrap_or_default().iter().fold(0, |bits, digit| bits << 6 | digit);
        let claimed = u32::swap_bytes((bits >> 4) as u32) as usize;
        let bytes = text.len() / 4 * 3;
        if claimed > bytes {
            return Err(format!("field `{FIELD}`: it claims {claimed} bytes and has {bytes}"));
        }
    }
    normalizer["normalizers"].as_array().into_iter().flatten().try_for_each(check_rules)
}

fn base64_digit(character: u8) -> Option<u64> {
    let digits = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*b"+/");
    (0..).zip(digits).find(|&(_, digit)| digit == character).map(|(value, _)| value)
}

/// Rejects replacements that would turn a small text into a huge one.
fn check_growth(field: &str, part: Option<&impl Serialize>) -> Result<(), String> {
    let description = serde_json::to_value(part).map_err(|error| error.to_string())?;
    let growth = growth(&description);
    if growth > GROWTH_MAX {
        return Err(format!("field `{field}`: its replacements make texts {growth} times as long"));
    }
    Ok(())
}

/// Returns the maximum factor by which a part makes a text longer.
fn growth(description: &Value) -> usize {
    let characters = |value: &Value| value.as_str().map(|text| text.chars().count());
    if description["type"] == "ByteLevel" {
        return char::MAX.len_utf8();
    }
    let parts = ["normalizers", "pretokenizers", "decoders"]
        .into_iter()
        .find_map(|name| description[name].as_array());
    if let Some(parts) = parts {
        return parts.iter().map(growth).fold(1, usize::saturating_mul);
    }
    // A regular expression may match one character.
    let replaced = characters(&description["pattern"]["String"]).unwrap_or(1).max(1);
    characters(&description["content"]).unwrap_or(1).div_ceil(replaced).max(1)
}

/// Returns whether `word` is a string anywhere in the decoder's description: the type of a part, or a pattern
/// that it replaces.
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
    fn replacements_that_multiply_each_other_are_rejected() {
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
    fn a_text_on_which_a_regular_expression_needs_too_many_steps_is_rejected() {
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
    fn ids_on_which_the_decoder_panics_have_no_text() {
        let file = json!({
            "decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 2},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "xa": 1}, "unk_token": "a"}
        });
        let files = CheckpointFiles::memory("m", [(LIBRARY_FILE.to_owned(), file.to_string().into_bytes())]);
        let (tokenizer, _) = LibraryTokenizer::open(&files).unwrap();
        assert_eq!(tokenizer.decode(&[1]).as_deref(), Some("x"));
        assert_eq!(tokenizer.decode(&[0]), None);
    }

    #[test]
    fn repeated_byte_level_encoding_is_rejected() {
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let open = |times: usize| {
            let file = json!({
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": vec![bytes.clone(); times]},
                "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
            });
            let bytes = file.to_string().into_bytes();
            let files = CheckpointFiles::memory("m", [(LIBRARY_FILE.to_owned(), bytes)]);
            LibraryTokenizer::open(&files).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(open(3), Ok(()));
        let error = open(40).unwrap_err();
        assert!(
            error.contains("tokenizer.json") && error.contains("field `pre_tokenizer`: its rep"),
            "{error}"
        );
    }

    #[test]
    fn rules_that_claim_more_bytes_than_they_have_are_rejected() {
        let precompiled = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
        let nested = |text: &str| json!({"type": "Sequence", "normalizers": [precompiled(text)]});
        // The first 4 bytes are the length, here 2 and 2^30.
        assert_eq!(check_rules(&nested("AgAAAGFi")), Ok(()));
        let error = check_rules(&nested("AAAAQGFi")).unwrap_err();
        assert_eq!(error, "field `precompiled_charsmap`: it claims 1073741824 bytes and has 6");
        assert!(check_rules(&precompiled("////////")).is_err());
    }

    #[test]
    fn a_token_of_megabytes_is_rejected() {
        let piece = |name: String| (5, Piece { name, kind: PieceKind::Added });
        assert!(PieceTable::new([piece("y".repeat(1000))], Spelling::Plain).is_ok());
        let error = PieceTable::new([piece("y".repeat(5_000_000))], Spelling::Plain).unwrap_err();
        assert_eq!(error, "token 5 has 5000000 bytes, at most 16384 are accepted");
        let file = json!({"added_tokens": [{"id": 7, "content": "y".repeat(20_000)}]}).to_string();
        let error = check_tables(file.as_bytes()).unwrap_err();
        assert_eq!(error, "token 7 has 20000 bytes, at most 16384 are accepted");
    }
}

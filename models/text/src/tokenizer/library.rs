//! Runs a `tokenizer.json` with the `tokenizers` crate. The file's post-processor adds special tokens at both
//! ends.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ntl_core::Prompt;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::{EncodeInput, Encoding};

use crate::checkpoint::{CheckpointFiles, LoadError};

use super::EncodeError;
use super::growth::{GROWTH_MAX, longest_string};
use super::pieces::{Piece, PieceKind, PieceTable, Segment, Spelling, check_name, named_byte};

/// Maximum number of parts of a normalizer, a pre-tokenizer, a decoder or a post-processor. Each reads the
/// whole text. Real ones have up to 30.
const PARTS_MAX: usize = 256;

/// Maximum number of special tokens that the post-processor adds to a text. Real ones add up to four.
const SPECIAL_MAX: usize = 256;

/// Maximum number of merges of a BPE model. Vocabularies of 262,000 tokens have 580,000.
const MERGES_MAX: usize = 1_000_000;

/// Maximum number of added tokens. Real tokenizers have up to 7,000.
const ADDED_MAX: usize = 50_000;

pub(super) const LIBRARY_FILE: &str = "tokenizer.json";

/// The field with the rules of a `Precompiled` normalizer.
const RULES: &str = "precompiled_charsmap";

pub(super) struct LibraryTokenizer {
    inner: tokenizers::Tokenizer,
    /// Maximum factor by which it makes a text longer before it splits the text into tokens.
    growth: usize,
}

impl LibraryTokenizer {
    pub(super) fn open(files: &CheckpointFiles) -> Result<(Self, PieceTable), LoadError> {
        let bytes = files.require(LIBRARY_FILE)?;
        open_checked(&bytes).map_err(|reason| LoadError::malformed(files.name_of(LIBRARY_FILE), reason))
    }

    pub(super) fn growth(&self) -> usize {
        self.growth
    }

    fn encoding<'a>(
        &self,
        input: impl Into<EncodeInput<'a>>,
        add_special_tokens: bool,
    ) -> Result<Encoding, EncodeError> {
        let input = input.into();
        // The crate panics if a regular expression of the file needs too many steps.
        let encode = AssertUnwindSafe(|| self.inner.encode_fast(input, add_special_tokens));
        let encoding = catch_unwind(encode).unwrap_or_else(|_| Err("the tokenizer failed".into()));
        encoding.map_err(EncodeError::Library)
    }

    /// Encodes two texts as one prompt, with special tokens.
    pub(super) fn encode_pair(&self, first: &str, second: &str) -> Result<Prompt, EncodeError> {
        let encoding = self.encoding((first, second), true)?;
        let second_segment = encoding.get_type_ids().iter().position(|&segment| segment == 1);
        Ok(Prompt { second_segment, ..encoding.get_ids().to_vec().into() })
    }

    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Segment>, EncodeError> {
        let encoding = self.encoding(text, add_special_tokens)?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_tokens());
        Ok(tokens.map(|(&id, text)| Segment { id, text: text.clone() }).collect())
    }

    /// Decodes `ids` without special tokens. Returns `None` if the file's decoder fails.
    pub(super) fn decode(&self, ids: &[u32]) -> Option<String> {
        // The crate panics if a file strips more characters than a token has.
        catch_unwind(AssertUnwindSafe(|| self.inner.decode(ids, true))).ok()?.ok()
    }
}

fn open_checked(file: &[u8]) -> Result<(LibraryTokenizer, PieceTable), String> {
    check_tables(file)?;
    // The crate panics on some files, such as one whose normalizer has rules of the wrong type.
    catch_unwind(|| open_inner(file))
        .unwrap_or_else(|_| Err("the tokenizers crate cannot read it".to_owned()))
}

fn open_inner(file: &[u8]) -> Result<(LibraryTokenizer, PieceTable), String> {
    let mut inner = tokenizers::Tokenizer::from_bytes(file).map_err(|error| error.to_string())?;
    // The file may contain limits of the training run. The server has its own limits.
    inner.with_truncation(None).map_err(|error| error.to_string())?;
    inner.with_padding(None);
    let normalized = check_growth("normalizer", inner.get_normalizer())?;
    let growth = normalized * check_growth("pre_tokenizer", inner.get_pre_tokenizer())?;
    check_growth("decoder", inner.get_decoder())?;
    check_special(inner.get_post_processor())?;
    let table = piece_table(&inner)?;
    Ok((LibraryTokenizer { inner, growth }, table))
}

fn piece_table(inner: &tokenizers::Tokenizer) -> Result<PieceTable, String> {
    let decoder = serde_json::to_value(inner.get_decoder()).map_err(|error| error.to_string())?;
    let has_byte_pieces = mentions(&decoder, "ByteFallback");
    let spelling = if mentions(&decoder, "ByteLevel") {
        Spelling::ByteLevel
    } else if mentions(&decoder, "Metaspace") || mentions(&decoder, "▁") {
        Spelling::SpaceMark
    } else {
        Spelling::Plain
    };
    let pieces = inner.get_vocab(false).into_iter().map(|(name, id)| {
        let kind = match named_byte(&name) {
            Some(byte) if has_byte_pieces => PieceKind::Byte(byte),
            _ => PieceKind::Text,
        };
        (id, Piece { name, kind })
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
    if let Some(text) = normalizer[RULES].as_str() {
        let beginning = text.get(..8).and_then(decoded).unwrap_or_default();
        let claimed = beginning.first_chunk().map_or(0, |&size| u32::from_le_bytes(size) as usize);
        let bytes = text.len() / 4 * 3;
        if claimed > bytes {
            return Err(format!("field `{RULES}`: it claims {claimed} bytes and has {bytes}"));
        }
    }
    normalizer["normalizers"].as_array().into_iter().flatten().try_for_each(check_rules)
}

/// Returns the zero-terminated replacements of rules, which are after the size of a trie and the trie.
fn replacements(rules: &[u8]) -> &[u8] {
    let Some((&size, rest)) = rules.split_first_chunk() else { return &[] };
    rest.get(u32::from_le_bytes(size) as usize..).unwrap_or_default()
}

/// Decodes base64. Returns `None` if the text is not base64.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut count) = (0_u32, 0);
    for character in text.trim_end_matches('=').bytes() {
        bits = bits << 6 | base64_digit(character)?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

fn base64_digit(character: u8) -> Option<u32> {
    Some(match character {
        b'A'..=b'Z' => u32::from(character - b'A'),
        b'a'..=b'z' => u32::from(character - b'a') + 26,
        b'0'..=b'9' => u32::from(character - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// Returns the maximum factor by which a part of the tokenizer makes a text longer. Rejects parts that would
/// turn a small text into a huge one.
fn check_growth(field: &str, part: Option<&impl Serialize>) -> Result<usize, String> {
    let description = description(field, part)?;
    let growth = grown(1, &description)?;
    if growth > GROWTH_MAX {
        return Err(format!("field `{field}`: its replacements make texts {growth} times as long"));
    }
    Ok(growth)
}

/// Returns a part of the tokenizer, which may be a sequence of parts, as JSON.
fn description(field: &str, part: Option<&impl Serialize>) -> Result<Value, String> {
    let description = serde_json::to_value(part).map_err(|error| error.to_string())?;
    let count = count(&description);
    if count > PARTS_MAX {
        return Err(format!("field `{field}`: it has {count} parts, at most {PARTS_MAX} are accepted"));
    }
    Ok(description)
}

/// Returns the parts of a sequence.
fn parts(description: &Value) -> Option<&Vec<Value>> {
    let names = ["normalizers", "pretokenizers", "decoders", "processors"];
    names.into_iter().find_map(|name| description[name].as_array())
}

fn count(description: &Value) -> usize {
    parts(description).map_or(1, |parts| parts.iter().map(count).sum())
}

/// Returns the maximum length of a text, in characters, after a part that gets `length` characters. A text
/// has at least one character, so that the result for 1 is a factor.
fn grown(length: usize, description: &Value) -> Result<usize, String> {
    if let Some(parts) = parts(description) {
        return parts.iter().try_fold(length, grown);
    }
    Ok(match description["type"].as_str() {
        Some("ByteLevel") => {
            let prefix = usize::from(description["add_prefix_space"] == Value::Bool(true));
            length.saturating_add(prefix).saturating_mul(char::MAX.len_utf8())
        }
        Some("Metaspace") => length.saturating_add(1),
        Some("Prepend") => length.saturating_add(text_length(&description["prepend"]).unwrap_or(1)),
        Some("Precompiled") => {
            let rules = description[RULES].as_str().and_then(decoded).unwrap_or_default();
            length.saturating_mul(longest_string(replacements(&rules)).max(1))
        }
        _ => {
            let Some(content) = text_length(&description["content"]) else { return Ok(length) };
            match text_length(&description["pattern"]["String"]) {
                Some(replaced) if replaced > 0 => length.saturating_mul(content.div_ceil(replaced).max(1)),
                // A regular expression may match between two characters, and replace none.
                _ => length.saturating_mul(content.saturating_add(1)),
            }
        }
    })
}

/// Returns the number of characters of a text.
fn text_length(value: &Value) -> Option<usize> {
    Some(value.as_str()?.chars().count())
}

/// Rejects a post-processor that adds many tokens, or repeats a text.
fn check_special(part: Option<&impl Serialize>) -> Result<(), String> {
    const FIELD: &str = "post_processor";
    let description = description(FIELD, part)?;
    for template in [Template { name: "single", texts: 1 }, Template { name: "pair", texts: 2 }] {
        let Processed { special, repeated } =
            processed(Processed { special: 0, repeated: 1 }, &description, &template);
        if special > SPECIAL_MAX {
            let message = format!("it adds {special} tokens, at most {SPECIAL_MAX} are accepted");
            return Err(format!("field `{FIELD}`: {message}"));
        }
        if repeated > 1 {
            return Err(format!("field `{FIELD}`: it repeats the text {repeated} times"));
        }
    }
    Ok(())
}

/// A field of a post-processor, which places this number of texts.
struct Template {
    name: &'static str,
    texts: usize,
}

/// The tokens of texts after their post-processor.
struct Processed {
    /// Number of special tokens.
    special: usize,
    /// Number of times that the texts' tokens occur.
    repeated: usize,
}

fn processed(before: Processed, description: &Value, template: &Template) -> Processed {
    if let Some(parts) = parts(description) {
        return parts.iter().fold(before, |before, part| processed(before, part, template));
    }
    let Some(pieces) = description[template.name].as_array() else { return before };
    let mut texts: usize = 0;
    let mut added = 0_usize;
    for piece in pieces {
        if piece["Sequence"].is_object() {
            texts += 1;
        }
        if let Some(name) = piece["SpecialToken"]["id"].as_str()
            && let Some(ids) = description["special_tokens"][name]["ids"].as_array()
        {
            added = added.saturating_add(ids.len());
        }
    }
    let repeated = texts.div_ceil(template.texts);
    Processed {
        special: before.special.saturating_mul(repeated).saturating_add(added),
        repeated: before.repeated.saturating_mul(repeated),
    }
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
        let prepend = |length: usize| json!({"type": "Prepend", "prepend": "▁".repeat(length)});
        let prepended = json!({"type": "Sequence", "normalizers": vec![prepend(100); 9]});
        let between = json!({"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": "b"});
        let doubled = json!({"type": "Sequence", "normalizers": vec![between.clone(); 9]});
        assert_eq!(check_growth("normalizer", None::<&Value>), Ok(1));
        assert_eq!(check_growth("normalizer", Some(&llama)), Ok(2));
        for (field, part, times) in [
            ("normalizer", &bomb, "1000000000"),
            ("decoder", &nested, "243"),
            ("normalizer", &prepended, "901"),
            ("normalizer", &doubled, "512"),
            ("normalizer", &precompiled(&"x".repeat(200)), "200"),
        ] {
            let error = check_growth(field, Some(part)).unwrap_err();
            assert_eq!(error, format!("field `{field}`: its replacements make texts {times} times as long"));
        }
        assert_eq!(check_growth("normalizer", Some(&precompiled("ab\0cde\0"))), Ok(3));
        let many = json!({"type": "Sequence", "normalizers": vec![json!({"type": "Lowercase"}); 257]});
        let error = check_growth("normalizer", Some(&many)).unwrap_err();
        assert_eq!(error, "field `normalizer`: it has 257 parts, at most 256 are accepted");
    }

    /// A normalizer with rules that replace by these strings, whose trie is empty.
    fn precompiled(strings: &str) -> Value {
        let rules = [&[0; 4], strings.as_bytes()].concat();
        let digits = |three: &[u8]| {
            let bits =
                three.iter().fold(0, |bits, &byte| (bits << 8) | u32::from(byte)) << (8 * (3 - three.len()));
            let digit = |place: usize| {
                let value = bits >> (18 - 6 * place) & 63;
                (b'+'..=b'z').find(|&character| base64_digit(character) == Some(value)).unwrap() as char
            };
            (0..=three.len()).map(digit).collect::<String>()
        };
        json!({"type": "Precompiled", RULES: rules.chunks(3).map(digits).collect::<String>()})
    }

    #[test]
    fn a_post_processor_that_adds_thousands_of_tokens_or_repeats_the_text_is_rejected() {
        let open = |post_processor: Value| {
            let file = json!({
                "post_processor": post_processor,
                "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
            });
            let bytes = file.to_string().into_bytes();
            let files = CheckpointFiles::memory("m", [(LIBRARY_FILE.to_owned(), bytes)]);
            LibraryTokenizer::open(&files).map(|(tokenizer, _)| tokenizer.encode("a", true).unwrap().len())
        };
        let template = |special: usize, ids: usize, texts: usize| {
            let text = json!({"Sequence": {"id": "A", "type_id": 0}});
            let token = json!({"SpecialToken": {"id": "?", "type_id": 0}});
            let single = [vec![token; special], vec![text; texts]].concat();
            json!({
                "type": "TemplateProcessing",
                "single": single,
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"?": {"id": "?", "ids": vec![1; ids], "tokens": vec!["?"; ids]}}
            })
        };
        let sequence =
            |times: usize, part: Value| json!({"type": "Sequence", "processors": vec![part; times]});
        assert_eq!(open(template(2, 3, 1)).unwrap(), 7);
        let mut pair = template(1, 1, 1);
        let first = pair["pair"][0].clone();
        pair["pair"].as_array_mut().unwrap().extend(vec![first; 40]);
        for (part, reason) in [
            (template(500, 1000, 1), "it adds 500000 tokens, at most 256 are accepted"),
            (sequence(200, template(1, 3, 1)), "it adds 600 tokens, at most 256 are accepted"),
            (template(0, 1, 5000), "it repeats the text 5000 times"),
            (sequence(3, template(0, 1, 2)), "it repeats the text 8 times"),
            (pair, "it repeats the text 21 times"),
            (sequence(300, template(0, 1, 1)), "it has 300 parts, at most 256 are accepted"),
        ] {
            let error = open(part).unwrap_err().to_string();
            assert!(error.ends_with(&format!("field `post_processor`: {reason}")), "{error}");
        }
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

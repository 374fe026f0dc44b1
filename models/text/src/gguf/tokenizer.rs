//! Converts the tokenizer inside a GGUF file back to the `tokenizer.json` from which it was made.
//!
//! There are three types: `llama` (SentencePiece pieces with scores, from which the merges are derived as in
//! Hugging Face's converter), `t5` (the same with a unigram model) and `gpt2` (byte-level BPE, pre-tokenized
//! according to `tokenizer.ggml.pre`).

use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::file::GgufFile;
use super::value::Value;
use crate::checkpoint::LoadError;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";

const MARK: &str = "▁";
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Maximum length of a token, in bytes. Finding the merges of a token takes time by the square of its length.
const TOKEN_BYTES_MAX: usize = 1024;

/// Tokens that end a text or a turn in any model, as in llama.cpp.
const END_NAMES: [&str; 8] = [
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
];

/// Pattern of the pre-tokenizer; `{}` is replaced by the repetition of digits.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pattern of Mistral's pre-tokenizer since Nemo.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pattern of the pre-tokenizer of GPT-4o, which Phi-4-mini uses.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Special tokens of Phi-3 that leave the spaces after them to the text.
const PHI3_KEEPING: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

struct Tokens<'a> {
    gguf: &'a GgufFile,
    names: &'a [String],
    /// `tokenizer.ggml.token_type` of each token.
    kinds: Vec<i64>,
}

/// Returns the contents of `tokenizer.json`.
pub(super) fn tokenizer(gguf: &GgufFile) -> Result<Json, LoadError> {
    let tokens = Tokens::read(gguf)?;
    let parts = match gguf.text(MODEL)? {
        Some("llama") => tokens.pieces()?,
        Some("t5") => tokens.unigram()?,
        Some("gpt2") => tokens.bytes()?,
        other => {
            let reason = format!(
                "`{}` is not supported; put a tokenizer.json next to the file",
                other.unwrap_or("none")
            );
            return Err(gguf.field(MODEL, reason));
        }
    };
    let mut all = Map::from_iter(parts.into_iter().map(|(name, part)| (name.to_owned(), part)));
    all.insert("version".to_owned(), "1.0".into());
    all.insert("added_tokens".to_owned(), tokens.added()?);
    Ok(Json::Object(all))
}

/// Returns the contents of `tokenizer_config.json`.
pub(super) fn config(gguf: &GgufFile) -> Result<Json, LoadError> {
    let names = gguf.texts(TOKENS)?.unwrap_or_default();
    // Hugging Face cleans up the texts of T5.
    let is_t5 = gguf.text(MODEL)? == Some("t5");
    let mut config = json!({"clean_up_tokenization_spaces": is_t5});
    if let Some(template) = gguf.text("tokenizer.chat_template")? {
        config["chat_template"] = template.into();
    }
    for (purpose, what) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        if let Some(id) = gguf.id(&format!("tokenizer.ggml.{what}_token_id"))?
            && let Some(name) = names.get(id as usize)
        {
            config[purpose] = name.as_str().into();
        }
    }
    Ok(config)
}

/// Returns the ids that end a text or a turn, in ascending order: the ids that the metadata names, and
/// control tokens with usual names.
pub fn end_ids(gguf: &GgufFile) -> Result<Vec<u32>, LoadError> {
    let mut ids = Vec::new();
    for what in ["eos", "eot", "eom"] {
        ids.extend(gguf.id(&format!("tokenizer.ggml.{what}_token_id"))?);
    }
    if gguf.get(TOKENS).is_some() {
        let tokens = Tokens::read(gguf)?;
        for (name, id) in tokens.names.iter().zip(0..) {
            if END_NAMES.contains(&name.as_str()) {
                ids.push(id);
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

type Parts = Vec<(&'static str, Json)>;

impl<'a> Tokens<'a> {
    fn read(gguf: &'a GgufFile) -> Result<Self, LoadError> {
        let missing = "missing, and there is no tokenizer.json next to the file";
        let names = gguf.texts(TOKENS)?.ok_or_else(|| gguf.field(TOKENS, missing))?;
        if let Some(long) = names.iter().find(|name| name.len() > TOKEN_BYTES_MAX) {
            let reason = format!("a token has {} bytes; the limit is {TOKEN_BYTES_MAX}", long.len());
            return Err(gguf.field(TOKENS, reason));
        }
        let mut kinds = match gguf.get(KINDS) {
            None => vec![NORMAL; names.len()],
            Some(Value::Integers(kinds)) if kinds.len() == names.len() => kinds.clone(),
            Some(_) => return Err(gguf.field(KINDS, "not one integer for each token")),
        };
        // Some files do not mark them.
        for (name, kind) in names.iter().zip(&mut kinds) {
            if END_NAMES.contains(&name.as_str()) {
                *kind = CONTROL;
            }
        }
        Ok(Self { gguf, names, kinds })
    }

    fn scores(&self) -> Result<&'a [f64], LoadError> {
        const SCORES: &str = "tokenizer.ggml.scores";
        match self.gguf.get(SCORES) {
            Some(Value::Floats(scores)) if scores.len() == self.names.len() => Ok(scores),
            _ => Err(self.gguf.field(SCORES, "not one number for each token")),
        }
    }

    /// SentencePiece with a unigram model.
    fn unigram(&self) -> Result<Parts, LoadError> {
        let gguf = self.gguf;
        let unknown = gguf.id("tokenizer.ggml.unknown_token_id")?.unwrap_or(2);
        let vocab: Vec<(&String, &f64)> = self.names.iter().zip(self.scores()?).collect();
        let begins_with_space = gguf.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let scheme = if begins_with_space { "always" } else { "never" };
        let mark = json!({
            "type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": true,
        });
        let mut steps = vec![mark.clone()];
        if gguf.flag("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(true) {
            steps.insert(0, json!({"type": "WhitespaceSplit"}));
        }
        Ok(vec![
            ("normalizer", self.character_map()?),
            ("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": steps})),
            ("decoder", mark),
            ("post_processor", self.ends(Ends { begins: false, ends: true })?),
            ("model", json!({"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": false})),
        ])
    }

    /// Returns the normalizer with SentencePiece's table of characters.
    fn character_map(&self) -> Result<Json, LoadError> {
        const MAP: &str = "tokenizer.ggml.precompiled_charsmap";
        let bytes = match self.gguf.get(MAP) {
            None => return Ok(Json::Null),
            Some(Value::Integers(numbers)) => {
                numbers.iter().map(|&number| u8::try_from(number)).collect::<Result<Vec<u8>, _>>()
            }
            Some(_) => return Err(self.gguf.field(MAP, "not a list of bytes")),
        };
        let bytes = bytes.map_err(|_| self.gguf.field(MAP, "not a list of bytes"))?;
        if bytes.is_empty() {
            return Ok(Json::Null);
        }
        Ok(json!({"type": "Precompiled", "precompiled_charsmap": base64(&bytes)}))
    }

    /// SentencePiece: spaces are `▁`, and unknown characters are spelled as bytes.
    fn pieces(&self) -> Result<Parts, LoadError> {
        let gguf = self.gguf;
        let scores = self.scores()?;
        let begins_with_space = gguf.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let mut normalizers = vec![replace(" ", MARK)];
        let mut decoders = vec![replace(MARK, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if begins_with_space {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": MARK}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = gguf.id("tokenizer.ggml.unknown_token_id")?.unwrap_or(0);
        Ok(vec![
            ("normalizer", json!({"type": "Sequence", "normalizers": normalizers})),
            ("pre_tokenizer", Json::Null),
            ("decoder", json!({"type": "Sequence", "decoders": decoders})),
            ("post_processor", self.ends(Ends { begins: true, ends: false })?),
            (
                "model",
                json!({
                    "type": "BPE", "vocab": self.vocab(), "merges": self.merges(scores), "fuse_unk": true,
                    "byte_fallback": true, "unk_token": self.names.get(unknown as usize),
                }),
            ),
        ])
    }

    /// Returns all pairs of pieces that form a third piece, in descending order of the third piece's score.
    fn merges(&self, scores: &[f64]) -> Vec<[&str; 2]> {
        let mut ids = HashMap::new();
        for (id, name) in self.names.iter().enumerate() {
            if self.kinds[id] == NORMAL {
                ids.insert(name.as_str(), id);
            }
        }
        let mut found = Vec::new();
        for (id, name) in self.names.iter().enumerate() {
            if self.kinds[id] != NORMAL {
                continue;
            }
            let mut pairs = Vec::new();
            for (at, _) in name.char_indices().skip(1) {
                let (left, right) = name.split_at(at);
                if let (Some(&left), Some(&right)) = (ids.get(left), ids.get(right)) {
                    pairs.push((left, right));
                }
            }
            pairs.sort_unstable();
            found.extend(pairs.into_iter().map(|pair| (scores[id], pair)));
        }
        let lengths: Vec<usize> = self.names.iter().map(|name| name.chars().count()).collect();
        let merge_lengths = |&(left, right): &(usize, usize)| Reverse((lengths[left], lengths[right]));
        found.sort_by(|(score, pair), (other_score, other_pair)| {
            let by_score = other_score.total_cmp(score);
            by_score.then_with(|| merge_lengths(pair).cmp(&merge_lengths(other_pair)))
        });
        found.into_iter().map(|(_, (left, right))| [&*self.names[left], &*self.names[right]]).collect()
    }

    /// Byte-level BPE.
    fn bytes(&self) -> Result<Parts, LoadError> {
        const MERGES: &str = "tokenizer.ggml.merges";
        let gguf = self.gguf;
        let merges = gguf.texts(MERGES)?.ok_or_else(|| gguf.field(MERGES, "missing"))?;
        if let Some(merge) = merges.iter().find(|merge| !merge.contains(' ')) {
            return Err(gguf.field(MERGES, format!("`{merge}` is not two tokens")));
        }
        let Splitting { normalizer, steps, is_llama3 } = Splitting::read(gguf)?;
        Ok(vec![
            ("normalizer", normalizer),
            ("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": steps})),
            ("decoder", byte_level(true)),
            ("post_processor", self.ends(Ends { begins: is_llama3, ends: false })?),
            (
                "model",
                json!({
                    "type": "BPE", "vocab": self.vocab(), "merges": merges, "fuse_unk": false,
                    "byte_fallback": false, "ignore_merges": is_llama3,
                }),
            ),
        ])
    }

    fn vocab(&self) -> Map<String, Json> {
        self.names.iter().zip(0_u32..).map(|(name, id)| (name.clone(), id.into())).collect()
    }

    /// Returns the tokens that are found in a text before pre-tokenization.
    fn added(&self) -> Result<Json, LoadError> {
        // The converter of llama.cpp does not store that Phi-3's tokens take the spaces after them.
        let is_phi3 = self.gguf.text("general.architecture")? == Some("phi3")
            && self.gguf.text(MODEL)? == Some("llama");
        let mut added = Vec::new();
        for ((name, kind), id) in self.names.iter().zip(&self.kinds).zip(0_u32..) {
            if [UNKNOWN, CONTROL, USER_DEFINED].contains(kind) {
                let takes_spaces = is_phi3 && !PHI3_KEEPING.contains(&name.as_str());
                added.push(json!({
                    "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": takes_spaces,
                    "normalized": false, "special": *kind != USER_DEFINED,
                }));
            }
        }
        Ok(added.into())
    }

    /// Returns the post-processor. `usual` applies if the file does not specify the tokens.
    fn ends(&self, usual: Ends) -> Result<Json, LoadError> {
        let first = self.special("bos", usual.begins)?;
        let last = self.special("eos", usual.ends)?;
        if first.is_none() && last.is_none() {
            return Ok(Json::Null);
        }
        let mut single = Vec::new();
        let mut special_tokens = Map::new();
        single.extend(first.map(special_token));
        single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
        single.extend(last.map(special_token));
        for (name, id) in first.into_iter().chain(last) {
            special_tokens.insert(name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]}));
        }
        let mut pair = single.clone();
        pair.push(json!({"Sequence": {"id": "B", "type_id": 0}}));
        Ok(json!({
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special_tokens,
        }))
    }

    /// Returns the name and the id of a token that is added to each text.
    fn special(&self, what: &str, usual: bool) -> Result<Option<(&'a str, u32)>, LoadError> {
        let is_added = self.gguf.flag(&format!("tokenizer.ggml.add_{what}_token"))?.unwrap_or(usual);
        let id = self.gguf.id(&format!("tokenizer.ggml.{what}_token_id"))?;
        Ok(match id {
            Some(id) if is_added => self.names.get(id as usize).map(|name| (name.as_str(), id)),
            _ => None,
        })
    }
}

/// The special tokens that are added to each text.
struct Ends {
    /// Whether texts begin with `bos`.
    begins: bool,
    /// Whether texts end with `eos`.
    ends: bool,
}

/// How byte-level BPE divides texts before it merges.
struct Splitting {
    normalizer: Json,
    steps: Vec<Json>,
    /// Whether a word that is a token is not divided and texts begin with `bos`, as in Llama 3.
    is_llama3: bool,
}

impl Splitting {
    fn read(gguf: &GgufFile) -> Result<Self, LoadError> {
        const PRE: &str = "tokenizer.ggml.pre";
        let plain = |steps| Self { normalizer: Json::Null, steps, is_llama3: false };
        let name = gguf.text(PRE)?.unwrap_or("default");
        let is_default_known = matches!(gguf.text("general.architecture")?, Some("gpt2" | "phi2"));
        Ok(match name {
            "gpt-2" | "phi-2" => plain(vec![byte_level(true)]),
            "default" if is_default_known => plain(vec![byte_level(true)]),
            "llama-bpe" | "llama3" | "llama-v3" => {
                Self { is_llama3: true, ..plain(vec![words("{1,3}"), byte_level(false)]) }
            }
            "dbrx" | "smaug-bpe" => plain(vec![words("{1,3}"), byte_level(false)]),
            "tekken" => Self { is_llama3: true, ..plain(vec![split(TEKKEN), byte_level(false)]) },
            "gpt-4o" => plain(vec![split(GPT_4O), byte_level(false)]),
            "qwen2" | "deepseek-r1-qwen" => {
                let normalizer = json!({"type": "NFC"});
                Self { normalizer, ..plain(vec![words(""), byte_level(false)]) }
            }
            "smollm" | "starcoder" | "refact" => {
                plain(vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)])
            }
            other => {
                let reason = format!("`{other}` is not supported; put a tokenizer.json next to the file");
                return Err(gguf.field(PRE, reason));
            }
        })
    }
}

/// Encodes bytes in Base64 (RFC 4648), with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut bits = 0;
        for position in 0..3 {
            bits = bits << 8 | u32::from(group.get(position).copied().unwrap_or(0));
        }
        for position in 0..4 {
            let letter = char::from(LETTERS[(bits >> (18 - 6 * position) & 63) as usize]);
            text.push(if position > group.len() { '=' } else { letter });
        }
    }
    text
}

fn byte_level(splits_words: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits_words})
}

fn words(digits: &str) -> Json {
    split(&WORDS.replace("{}", digits))
}

fn split(pattern: &str) -> Json {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn replace(pattern: &str, content: &str) -> Json {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

fn special_token((name, _): (&str, u32)) -> Json {
    json!({"SpecialToken": {"id": name, "type_id": 0}})
}

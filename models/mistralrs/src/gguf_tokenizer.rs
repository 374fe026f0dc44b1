//! Converts the tokenizer inside a GGUF file back to the `tokenizer.json` from which it was made.
//!
//! There are two types: `llama` (SentencePiece pieces with scores, from which the merges are derived as in
//! Hugging Face's converter) and `gpt2` (byte-level BPE, pre-tokenized according to `tokenizer.ggml.pre`).

use std::cmp::Reverse;
use std::collections::HashMap;

use ntl_text::checkpoint::LoadError;
use serde_json::{Map, Value, json};

use crate::gguf_file::GgufFile;

const MARK: &str = "▁";
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Pattern of the pre-tokenizer; `{}` is replaced by the repetition of digits.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

struct Tokens {
    names: Vec<String>,
    /// `tokenizer.ggml.token_type` of each token.
    kinds: Vec<i32>,
}

/// Returns the contents of `tokenizer.json`.
pub(crate) fn tokenizer(gguf: &GgufFile) -> Result<Value, LoadError> {
    let missing = |name: &str| gguf.refuse(name, "missing, and there is no tokenizer.json next to the file");
    let names = gguf.texts("tokenizer.ggml.tokens").ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
    let kinds = gguf.list("tokenizer.ggml.token_type", |value| value.to_i32().ok());
    let kinds = kinds.filter(|kinds| kinds.len() == names.len());
    let kinds = kinds.unwrap_or_else(|| vec![NORMAL; names.len()]);
    let tokens = Tokens { names, kinds };
    let parts = match gguf.text("tokenizer.ggml.model") {
        Some("llama") => pieces(gguf, &tokens)?,
        Some("gpt2") => bytes(gguf, &tokens)?,
        other => {
            let reason = format!(
                "`{}` is not supported; put a tokenizer.json next to the file",
                other.unwrap_or("none")
            );
            return Err(gguf.refuse("tokenizer.ggml.model", &reason));
        }
    };
    let mut all = Map::from_iter(parts.into_iter().map(|(name, part)| (name.to_owned(), part)));
    all.insert("version".to_owned(), "1.0".into());
    all.insert("added_tokens".to_owned(), added(&tokens));
    Ok(Value::Object(all))
}

/// Returns the contents of `tokenizer_config.json`.
pub(crate) fn config(gguf: &GgufFile) -> Value {
    let names = gguf.texts("tokenizer.ggml.tokens").unwrap_or_default();
    let named = |what: &str| {
        let id = gguf.number(&format!("tokenizer.ggml.{what}_token_id"))?;
        names.get(id as usize).cloned()
    };
    let mut config = json!({"clean_up_tokenization_spaces": false});
    for (name, value) in [
        ("chat_template", gguf.text("tokenizer.chat_template").map(str::to_owned)),
        ("bos_token", named("bos")),
        ("eos_token", named("eos")),
        ("unk_token", named("unknown")),
        ("pad_token", named("padding")),
    ] {
        if let Some(value) = value {
            config[name] = value.into();
        }
    }
    config
}

type Parts = Vec<(&'static str, Value)>;

/// SentencePiece: spaces are `▁`, and unknown characters are spelled as bytes.
fn pieces(gguf: &GgufFile, tokens: &Tokens) -> Result<Parts, LoadError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = gguf.list(SCORES, |value| value.to_f32().ok());
    let scores = scores.filter(|scores| scores.len() == tokens.names.len());
    let scores = scores.ok_or_else(|| gguf.refuse(SCORES, "not one number per token"))?;
    let begins_with_space = gguf.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let mut normalizers = vec![replace(" ", MARK)];
    let mut decoders = vec![replace(MARK, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if begins_with_space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": MARK}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = gguf.number("tokenizer.ggml.unknown_token_id").unwrap_or(0);
    Ok(vec![
        ("normalizer", json!({"type": "Sequence", "normalizers": normalizers})),
        ("pre_tokenizer", Value::Null),
        ("decoder", json!({"type": "Sequence", "decoders": decoders})),
        ("post_processor", ends(gguf, tokens, true)),
        (
            "model",
            json!({
                "type": "BPE", "vocab": vocab(tokens), "merges": merges(tokens, &scores), "fuse_unk": true,
                "byte_fallback": true, "unk_token": tokens.names.get(unknown as usize),
            }),
        ),
    ])
}

/// Returns all pairs of pieces that form a third piece, in descending order of the third piece's score.
fn merges(tokens: &Tokens, scores: &[f32]) -> Vec<[String; 2]> {
    let normal = |id: &usize| tokens.kinds[*id] == NORMAL;
    let ids: HashMap<&str, usize> =
        (0..tokens.names.len()).filter(normal).map(|id| (tokens.names[id].as_str(), id)).collect();
    let mut found = Vec::new();
    for id in (0..tokens.names.len()).filter(normal) {
        let name = tokens.names[id].as_str();
        let cuts = name.char_indices().skip(1).map(|(at, _)| name.split_at(at));
        let known = cuts.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?)));
        let mut own: Vec<_> = known.collect();
        own.sort_unstable();
        found.extend(own.into_iter().map(|pair| (scores[id], pair)));
    }
    let length = |id: usize| tokens.names[id].chars().count();
    found.sort_by(|(a, of_a), (b, of_b)| {
        b.total_cmp(a).then_with(|| {
            let lengths = |&(left, right): &(usize, usize)| Reverse((length(left), length(right)));
            lengths(of_a).cmp(&lengths(of_b))
        })
    });
    let name = |id: usize| tokens.names[id].clone();
    found.into_iter().map(|(_, (left, right))| [name(left), name(right)]).collect()
}

/// Byte-level BPE.
fn bytes(gguf: &GgufFile, tokens: &Tokens) -> Result<Parts, LoadError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    const PRE: &str = "tokenizer.ggml.pre";
    let merges = gguf.texts(MERGES).ok_or_else(|| gguf.refuse(MERGES, "missing"))?;
    let byte_level = |by_word: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": by_word});
    let words = |digits: &str| {
        let pattern = json!({"Regex": WORDS.replace("{}", digits)});
        json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
    };
    let pre = gguf.text(PRE).unwrap_or("default");
    let (normalizer, cut) = match pre {
        "default" | "gpt-2" | "phi-2" => (Value::Null, vec![byte_level(true)]),
        "llama-bpe" | "llama3" | "llama-v3" => (Value::Null, vec![words("{1,3}"), byte_level(false)]),
        "qwen2" => (json!({"type": "NFC"}), vec![words(""), byte_level(false)]),
        "smollm" | "starcoder" | "refact" => {
            (Value::Null, vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)])
        }
        other => {
            let reason = format!("`{other}` is not supported; put a tokenizer.json next to the file");
            return Err(gguf.refuse(PRE, &reason));
        }
    };
    Ok(vec![
        ("normalizer", normalizer),
        ("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": cut})),
        ("decoder", byte_level(true)),
        ("post_processor", ends(gguf, tokens, false)),
        (
            "model",
            json!({
                "type": "BPE", "vocab": vocab(tokens), "merges": merges, "fuse_unk": false, "byte_fallback": false,
                // The same as in Llama 3's tokenizer.json.
                "ignore_merges": pre.starts_with("llama"),
            }),
        ),
    ])
}

fn vocab(tokens: &Tokens) -> Map<String, Value> {
    tokens.names.iter().zip(0_u32..).map(|(name, id)| (name.clone(), id.into())).collect()
}

/// Returns the tokens that are found in a text before pre-tokenization.
fn added(tokens: &Tokens) -> Value {
    let all = tokens.names.iter().zip(&tokens.kinds).zip(0_u32..);
    let added = all.filter(|((_, kind), _)| [UNKNOWN, CONTROL, USER_DEFINED].contains(*kind));
    let added = added.map(|((name, &kind), id)| {
        json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": kind != USER_DEFINED,
        })
    });
    added.collect()
}

/// Returns the post-processor. `begins`: whether texts begin with `bos` if the file does not specify it.
fn ends(gguf: &GgufFile, tokens: &Tokens, begins: bool) -> Value {
    let special = |what: &str, usual: bool| {
        let id = gguf.number(&format!("tokenizer.ggml.{what}_token_id"))?;
        let wanted = gguf.flag(&format!("tokenizer.ggml.add_{what}_token")).unwrap_or(usual);
        Some((tokens.names.get(id as usize)?.clone(), id)).filter(|_| wanted)
    };
    let first = special("bos", begins);
    let last = special("eos", false);
    if first.is_none() && last.is_none() {
        return Value::Null;
    }
    let token = |end: &Option<(String, u32)>| {
        end.iter().map(|(name, _)| json!({"SpecialToken": {"id": name, "type_id": 0}})).collect::<Vec<_>>()
    };
    let text = |letter: &str| json!({"Sequence": {"id": letter, "type_id": 0}});
    let single = [token(&first), vec![text("A")], token(&last)].concat();
    let pair = [single.clone(), vec![text("B")]].concat();
    let known = first
        .iter()
        .chain(&last)
        .map(|(name, id)| (name.clone(), json!({"id": name, "ids": [id], "tokens": [name]})));
    let known: Map<String, Value> = known.collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known})
}

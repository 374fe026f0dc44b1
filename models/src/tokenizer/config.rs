//! `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`, checked and merged.
//!
//! In: the files as `save_pretrained` writes them; each may be missing. Out: [`TokenizerConfig`]. Not here: what
//! the tokens mean to a model.

use std::collections::BTreeMap;

use ntl_core::engine::NumberEncoding;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::checkpoint::{CheckpointFiles, LoadError};

use super::pieces::ID_MAX;

pub(super) const CONFIG_FILE: &str = "tokenizer_config.json";
const SPECIAL_FILE: &str = "special_tokens_map.json";
const ADDED_FILE: &str = "added_tokens.json";

/// How many `<extra_id_*>` a T5 tokenizer has when its files do not say.
const EXTRA_IDS: u32 = 100;

/// A token that stands beside the model's own pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    /// Whether decoding leaves it out.
    pub(super) special: bool,
}

/// What the files say.
#[derive(Debug)]
pub(super) struct TokenizerConfig {
    /// The Python class, such as `T5Tokenizer`.
    pub(super) class: Option<String>,
    pub(super) clean_up: bool,
    pub(super) model_max_length: Option<usize>,
    pub(super) extra_ids: u32,
    pub(super) eos: Option<String>,
    pub(super) pad: Option<String>,
    /// Every token that decoding leaves out, those two included.
    pub(super) special: Vec<String>,
    /// Tokens with ids of their own, by name.
    pub(super) added: BTreeMap<String, AddedToken>,
}

/// A special token, which the files write as a string or as an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TokenText {
    Bare(String),
    Described { content: String },
}

impl TokenText {
    fn into_text(self) -> String {
        match self {
            Self::Bare(content) | Self::Described { content } => content,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct SpecialFields {
    eos_token: Option<TokenText>,
    pad_token: Option<TokenText>,
    unk_token: Option<TokenText>,
    bos_token: Option<TokenText>,
    additional_special_tokens: Option<Vec<TokenText>>,
}

#[derive(Debug, Default, Deserialize)]
struct ConfigFields {
    tokenizer_class: Option<String>,
    clean_up_tokenization_spaces: Option<bool>,
    model_max_length: Option<serde_json::Number>,
    extra_ids: Option<u32>,
    added_tokens_decoder: Option<BTreeMap<u32, AddedFields>>,
    #[serde(flatten)]
    special: SpecialFields,
}

#[derive(Debug, Deserialize)]
struct AddedFields {
    content: String,
    #[serde(default)]
    special: bool,
}

impl TokenizerConfig {
    /// # Errors
    /// When a file cannot be read as what it is, or names a kind of tokenizer that is not served.
    pub(super) fn read(files: &CheckpointFiles) -> Result<Self, LoadError> {
        let fields: ConfigFields = read_json(files, CONFIG_FILE)?.unwrap_or_default();
        let fallback: SpecialFields = read_json(files, SPECIAL_FILE)?.unwrap_or_default();
        let ids: BTreeMap<String, u32> = read_json(files, ADDED_FILE)?.unwrap_or_default();
        let refuse = |field: &str, reason: &str| LoadError::field(files.name_of(CONFIG_FILE), field, reason);
        let extra_ids = fields.extra_ids.unwrap_or(EXTRA_IDS);
        if extra_ids > ID_MAX {
            return Err(refuse("extra_ids", &format!("{extra_ids} is more than {ID_MAX}")));
        }
        let special = merge(fields.special, fallback);
        let name = |token: &Option<TokenText>| match token {
            Some(TokenText::Bare(content) | TokenText::Described { content }) => Some(content.clone()),
            None => None,
        };
        let (eos, pad) = (name(&special.eos_token), name(&special.pad_token));
        let special = all_of(special);
        let mut added: BTreeMap<_, _> =
            ids.into_iter().map(|(name, id)| (name, AddedToken { id, special: false })).collect();
        for (id, token) in fields.added_tokens_decoder.unwrap_or_default() {
            added.insert(token.content, AddedToken { id, special: token.special });
        }
        for (name, token) in &mut added {
            token.special |= special.contains(name);
        }
        let class = fields.tokenizer_class;
        Ok(Self {
            // Transformers 4.42 cleans up unless told otherwise; for other families that was never meant.
            clean_up: fields.clean_up_tokenization_spaces.unwrap_or(is_t5(class.as_deref())),
            model_max_length: fields.model_max_length.as_ref().and_then(length),
            class,
            extra_ids,
            eos,
            pad,
            special,
            added,
        })
    }

    /// How the class writes numbers.
    pub(super) fn number_encoding(&self) -> NumberEncoding {
        match self.class.as_deref() {
            Some("T5Custom_Tokenizer") => NumberEncoding::Digits,
            Some("RtTokenizer") => NumberEncoding::Rt,
            Some("XvalTokenizer") => NumberEncoding::Xval,
            _ => NumberEncoding::Text,
        }
    }

    /// Whether a `spiece.model` can be read as this class would read it.
    pub(super) fn reads_sentencepiece(&self) -> bool {
        is_t5(self.class.as_deref()) || self.class.as_deref() == Some("PreTrainedTokenizerFast")
    }
}

/// Also where nothing is said: folders with a bare `spiece.model` are T5 checkpoints.
fn is_t5(class: Option<&str>) -> bool {
    let classes = [
        "T5Tokenizer",
        "T5TokenizerFast",
        "AutoNumberTokenizer",
        "T5Custom_Tokenizer",
        "RtTokenizer",
        "XvalTokenizer",
    ];
    class.is_none_or(|class| classes.contains(&class))
}

/// Hugging Face writes "no limit" as 1e30, which is no `u64`.
fn length(number: &serde_json::Number) -> Option<usize> {
    number
        .as_u64()
        .filter(|&length| (1..=u64::from(u32::MAX)).contains(&length))
        .map(|length| length as usize)
}

fn merge(first: SpecialFields, second: SpecialFields) -> SpecialFields {
    SpecialFields {
        eos_token: first.eos_token.or(second.eos_token),
        pad_token: first.pad_token.or(second.pad_token),
        unk_token: first.unk_token.or(second.unk_token),
        bos_token: first.bos_token.or(second.bos_token),
        additional_special_tokens: first.additional_special_tokens.or(second.additional_special_tokens),
    }
}

fn all_of(fields: SpecialFields) -> Vec<String> {
    let named = [fields.eos_token, fields.pad_token, fields.unk_token, fields.bos_token];
    let additional = fields.additional_special_tokens.unwrap_or_default();
    named.into_iter().flatten().chain(additional).map(TokenText::into_text).collect()
}

fn read_json<T: DeserializeOwned>(files: &CheckpointFiles, file: &str) -> Result<Option<T>, LoadError> {
    let Some(bytes) = files.read(file)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| LoadError::malformed(files.name_of(file), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Result<TokenizerConfig, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        TokenizerConfig::read(&CheckpointFiles::folder(folder.path()).unwrap())
    }

    #[test]
    fn without_files_it_is_a_plain_t5_tokenizer() {
        let config = read(&[]).unwrap();
        assert!(config.reads_sentencepiece() && config.clean_up);
        assert_eq!((config.number_encoding(), config.extra_ids), (NumberEncoding::Text, 100));
    }

    #[test]
    fn tokens_of_all_three_files_are_merged() {
        let config = read(&[
            (
                CONFIG_FILE,
                r#"{"eos_token": {"content": "</s>"}, "tokenizer_class": "T5Custom_Tokenizer",
                    "added_tokens_decoder": {"7": {"content": "<a>", "special": true}}}"#,
            ),
            (
                SPECIAL_FILE,
                r#"{"pad_token": "<pad>", "eos_token": "ignored", "additional_special_tokens": ["<b>"]}"#,
            ),
            (ADDED_FILE, r#"{"<b>": 8, "<c>": 9}"#),
        ])
        .unwrap();
        assert_eq!((config.eos.as_deref(), config.pad.as_deref()), (Some("</s>"), Some("<pad>")));
        assert_eq!(config.number_encoding(), NumberEncoding::Digits);
        assert_eq!(config.special, ["</s>", "<pad>", "<b>"]);
        let added: Vec<_> = config.added.iter().map(|(name, t)| (name.as_str(), t.id, t.special)).collect();
        assert_eq!(added, [("<a>", 7, true), ("<b>", 8, true), ("<c>", 9, false)]);
    }

    #[test]
    fn a_length_that_means_no_limit_is_none() {
        for (json, want) in [
            ("512", Some(512)),
            ("1000000000000000019884624838656", None),
            ("1e30", None),
            ("0", None),
            ("-1", None),
            ("null", None),
        ] {
            let config = read(&[(CONFIG_FILE, &format!(r#"{{"model_max_length": {json}}}"#))]).unwrap();
            assert_eq!(config.model_max_length, want, "{json}");
        }
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        for (file, content, want) in [
            (CONFIG_FILE, "{", "tokenizer_config.json is not usable: EOF"),
            (CONFIG_FILE, "[]", "tokenizer_config.json is not usable: invalid type"),
            (CONFIG_FILE, r#"{"eos_token": 5}"#, "tokenizer_config.json is not usable: "),
            (CONFIG_FILE, r#"{"extra_ids": 4000000000}"#, "field `extra_ids`: 4000000000 is more than"),
            (SPECIAL_FILE, "x", "special_tokens_map.json is not usable: "),
            (ADDED_FILE, r#"{"a": -1}"#, "added_tokens.json is not usable: "),
        ] {
            let message = read(&[(file, content)]).unwrap_err().to_string();
            assert!(message.contains(want), "{message}");
        }
    }
}

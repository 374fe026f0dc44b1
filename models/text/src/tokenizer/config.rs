//! Reads, checks and merges `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`, each
//! of which may be missing.

use std::collections::BTreeMap;

use ntl_core::contract::NumberEncoding;
use serde::Deserialize;

use crate::checkpoint::{CheckpointFiles, LoadError, TruncationSide};

use super::pieces::ID_MAX;

pub(super) const CONFIG_FILE: &str = "tokenizer_config.json";
const SPECIAL_FILE: &str = "special_tokens_map.json";
const ADDED_FILE: &str = "added_tokens.json";

/// Number of `<extra_id_*>` tokens of a T5 tokenizer if its files do not state it.
const EXTRA_IDS: u32 = 100;

/// A token that is added to the model's own pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    /// Whether decoding omits the token.
    pub(super) special: bool,
}

#[derive(Debug)]
pub(crate) struct TokenizerConfig {
    /// The Python class, such as `T5Tokenizer`.
    pub(super) class: Option<String>,
    pub(super) clean_up: bool,
    pub(super) model_max_length: Option<usize>,
    pub(super) truncation_side: Option<TruncationSide>,
    pub(super) extra_ids: u32,
    /// Special tokens by purpose, such as `bos_token`.
    pub(crate) named: BTreeMap<String, String>,
    /// All tokens that decoding omits.
    pub(super) special: Vec<String>,
    /// Tokens to which the files assign ids, by name.
    pub(super) added: BTreeMap<String, AddedToken>,
}

/// A special token, as a string or an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum StoredToken {
    Bare(String),
    Described { content: String },
}

impl StoredToken {
    fn into_text(self) -> String {
        match self {
            Self::Bare(content) | Self::Described { content } => content,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct SpecialFields {
    bos_token: Option<StoredToken>,
    eos_token: Option<StoredToken>,
    unk_token: Option<StoredToken>,
    sep_token: Option<StoredToken>,
    pad_token: Option<StoredToken>,
    cls_token: Option<StoredToken>,
    mask_token: Option<StoredToken>,
    additional_special_tokens: Option<Vec<StoredToken>>,
}

#[derive(Debug, Default, Deserialize)]
struct ConfigFields {
    tokenizer_class: Option<String>,
    clean_up_tokenization_spaces: Option<bool>,
    model_max_length: Option<serde_json::Number>,
    truncation_side: Option<String>,
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
    pub(crate) fn read(files: &CheckpointFiles) -> Result<Self, LoadError> {
        let fields: ConfigFields = files.json(CONFIG_FILE)?.unwrap_or_default();
        let fallback: SpecialFields = files.json(SPECIAL_FILE)?.unwrap_or_default();
        let ids: BTreeMap<String, u32> = files.json(ADDED_FILE)?.unwrap_or_default();
        let extra_ids = fields.extra_ids.unwrap_or(EXTRA_IDS);
        if extra_ids > ID_MAX {
            let reason = format!("{extra_ids} is more than {ID_MAX}");
            return Err(LoadError::field(files.name_of(CONFIG_FILE), "extra_ids", reason));
        }
        let truncation_side = fields.truncation_side.map(|side| side.parse()).transpose();
        let truncation_side = truncation_side.map_err(|reason: String| {
            LoadError::field(files.name_of(CONFIG_FILE), "truncation_side", reason)
        })?;
        let first = fields.special;
        let second = fallback;
        let named = [
            ("eos_token", first.eos_token.or(second.eos_token)),
            ("pad_token", first.pad_token.or(second.pad_token)),
            ("unk_token", first.unk_token.or(second.unk_token)),
            ("bos_token", first.bos_token.or(second.bos_token)),
            ("sep_token", first.sep_token.or(second.sep_token)),
            ("cls_token", first.cls_token.or(second.cls_token)),
            ("mask_token", first.mask_token.or(second.mask_token)),
        ];
        let named = named.map(|(purpose, token)| (purpose, token.map(StoredToken::into_text)));
        let additional =
            first.additional_special_tokens.or(second.additional_special_tokens).unwrap_or_default();
        // Decoding shows separators, class tokens and masks.
        let hidden = named[..4].iter().filter_map(|(_, token)| token.clone());
        let special: Vec<String> = hidden.chain(additional.into_iter().map(StoredToken::into_text)).collect();
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
            // transformers 4.42 cleans up by default, which is only right for T5.
            clean_up: fields.clean_up_tokenization_spaces.unwrap_or(is_t5(class.as_deref())),
            model_max_length: fields.model_max_length.as_ref().and_then(length),
            truncation_side,
            class,
            extra_ids,
            named: named
                .into_iter()
                .filter_map(|(purpose, token)| Some((purpose.to_owned(), token?)))
                .collect(),
            special,
            added,
        })
    }

    pub(super) fn number_encoding(&self) -> NumberEncoding {
        match self.class.as_deref() {
            Some("T5Custom_Tokenizer") => NumberEncoding::Digits,
            Some("RtTokenizer") => NumberEncoding::Rt,
            Some("XvalTokenizer") => NumberEncoding::Xval,
            _ => NumberEncoding::Text,
        }
    }

    /// Returns whether a `spiece.model` can be read in the same way as by this class.
    pub(super) fn reads_sentencepiece(&self) -> bool {
        is_t5(self.class.as_deref()) || self.class.as_deref() == Some("PreTrainedTokenizerFast")
    }
}

/// Returns whether a class is T5's. A missing class counts, because directories with only a `spiece.model`
/// are T5 checkpoints.
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

/// Converts a length. Hugging Face writes "no limit" as 1e30, which is not a `u64`, so it becomes `None`.
fn length(number: &serde_json::Number) -> Option<usize> {
    number
        .as_u64()
        .filter(|&length| (1..=u64::from(u32::MAX)).contains(&length))
        .map(|length| length as usize)
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
    fn without_files_the_tokenizer_is_a_plain_t5_tokenizer() {
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
        assert_eq!((&*config.named["eos_token"], &*config.named["pad_token"]), ("</s>", "<pad>"));
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
    fn errors_name_the_file_or_field() {
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

//! Where a checkpoint keeps its chat template and special tokens, old and new.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::checkpoint::{CheckpointFiles, LoadError};

const TEMPLATE_FILE: &str = "chat_template.jinja";
const CONFIG_FILE: &str = "tokenizer_config.json";
const SPECIAL_FILE: &str = "special_tokens_map.json";

/// Of several templates the one that is used.
const DEFAULT_NAME: &str = "default";

const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// `chat_template` of `tokenizer_config.json`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// The template's text. A file of its own comes before `tokenizer_config.json`.
pub(super) fn template(files: &CheckpointFiles) -> Result<Option<String>, LoadError> {
    if let Some(bytes) = files.read(TEMPLATE_FILE)? {
        let text = String::from_utf8(bytes.to_vec());
        return text.map(Some).map_err(|error| LoadError::malformed(files.name_of(TEMPLATE_FILE), error));
    }
    let stored = object(files, CONFIG_FILE)?.remove("chat_template").filter(|stored| !stored.is_null());
    let Some(stored) = stored else { return Ok(None) };
    let stored: Stored = serde_json::from_value(stored).map_err(|_| {
        let reason = "is neither a text nor a list of named texts";
        LoadError::field(files.name_of(CONFIG_FILE), "chat_template", reason)
    })?;
    Ok(match stored {
        Stored::One(template) => Some(template),
        Stored::Named(mut all) => {
            let default = all.iter().position(|named| named.name == DEFAULT_NAME);
            let chosen = default.or((all.len() == 1).then_some(0));
            chosen.map(|index| all.swap_remove(index).template)
        }
    })
}

/// Special tokens by what they are for.
pub(crate) fn special_tokens(files: &CheckpointFiles) -> Result<BTreeMap<String, String>, LoadError> {
    let (config, map) = (object(files, CONFIG_FILE)?, object(files, SPECIAL_FILE)?);
    let token = |name: &str| {
        let stored = [&config, &map].into_iter().filter_map(|fields| fields.get(name));
        let text =
            stored.filter_map(|token| token.as_str().or_else(|| token.get("content")?.as_str())).next()?;
        Some((name.to_owned(), text.to_owned()))
    };
    Ok(SPECIAL_TOKENS.into_iter().filter_map(token).collect())
}

fn object(files: &CheckpointFiles, file: &str) -> Result<serde_json::Map<String, Value>, LoadError> {
    let Some(bytes) = files.read(file)? else { return Ok(serde_json::Map::new()) };
    serde_json::from_slice(&bytes).map_err(|error| LoadError::malformed(files.name_of(file), error))
}

/// `{% generation %}` marks what training learns from. It changes no text, and only Hugging Face knows it.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut rewritten = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + len];
        let word = tag.trim_start_matches(['{', '%', '-', '+']).trim_end_matches(['-', '+']).trim();
        rewritten.push_str(&rest[..start]);
        match word {
            "generation" => rewritten.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => rewritten.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => rewritten.push_str(tag),
        }
        rest = &rest[start + len..];
    }
    rewritten + rest
}

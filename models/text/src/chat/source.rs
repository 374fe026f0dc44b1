//! Finds the chat template of a checkpoint, in its old and new locations.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::checkpoint::{CheckpointFiles, LoadError};

const TEMPLATE_FILE: &str = "chat_template.jinja";
const CONFIG_FILE: &str = "tokenizer_config.json";

/// Name of the template that is used if there are several.
const DEFAULT_NAME: &str = "default";

/// Name of the template that is used for conversations with tools.
const TOOL_NAME: &str = "tool_use";

/// The templates of a checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sources {
    pub(super) default: String,
    pub(super) tool_use: Option<String>,
}

impl From<String> for Sources {
    fn from(default: String) -> Self {
        Self { default, tool_use: None }
    }
}

/// `chat_template` of `tokenizer_config.json`.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredTemplates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// Returns the templates' texts. A template in place of the checkpoint's takes precedence over
/// `chat_template.jinja`, and that over `tokenizer_config.json`.
pub(super) fn templates(files: &CheckpointFiles) -> Result<Option<Sources>, LoadError> {
    if let Some(text) = files.chat_template() {
        return Ok(Some(text.to_owned().into()));
    }
    if let Some(bytes) = files.read(TEMPLATE_FILE)? {
        let text = String::from_utf8(bytes.to_vec());
        let text = text.map_err(|error| LoadError::malformed(files.name_of(TEMPLATE_FILE), error))?;
        return Ok(Some(text.into()));
    }
    let config: Map<String, Value> = files.json(CONFIG_FILE)?.unwrap_or_default();
    let Some(stored) = config.get("chat_template").filter(|stored| !stored.is_null()) else {
        return Ok(None);
    };
    let stored = StoredTemplates::deserialize(stored).map_err(|_| {
        let reason = "is neither a text nor a list of named texts";
        LoadError::field(files.name_of(CONFIG_FILE), "chat_template", reason)
    })?;
    Ok(match stored {
        StoredTemplates::One(template) => Some(template.into()),
        StoredTemplates::Named(mut all) => {
            let tool_use = all.iter().position(|named| named.name == TOOL_NAME);
            let tool_use = tool_use.map(|index| all[index].template.clone());
            let default = all.iter().position(|named| named.name == DEFAULT_NAME);
            let chosen = default.or((all.len() == 1).then_some(0));
            chosen.map(|index| Sources { default: all.swap_remove(index).template, tool_use })
        }
    })
}

/// Replaces `{% generation %}` tags by `{% if true %}`. They mark the text that training learns from, and
/// only Hugging Face supports them.
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

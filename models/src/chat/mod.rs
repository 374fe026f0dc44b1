//! Conversations as one text, by the chat template of a checkpoint, with the semantics of Hugging Face.
//!
//! In: a checkpoint's template and special tokens; later messages. Out: the prompt's text, special tokens written
//! out: it is tokenized without any more of them. Not here: what a client may ask for.

mod functions;
mod source;

use std::collections::BTreeMap;

use minijinja::{Environment, Value};
use serde::Serialize;

use crate::checkpoint::{CheckpointFiles, LoadError};

use self::functions::Raised;

pub(crate) use self::source::special_tokens;

/// The name under which the template stands in its environment.
const NAME: &str = "chat";

/// One message, as templates see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Who says it, such as `user`.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Who says it, more exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A conversation and how to write it.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Its messages, in order.
    pub messages: Vec<ChatMessage>,
    /// Whether to begin the answer: ends with what stands before an assistant's message.
    pub add_generation_prompt: bool,
    /// More variables for the template.
    pub variables: BTreeMap<String, serde_json::Value>,
}

/// A conversation that does not become text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template itself says no, by `raise_exception`.
    #[error("the chat template refuses the conversation: {0}")]
    Refused(String),
    /// The template cannot be used, for these messages or at all.
    #[error("the chat template of this model cannot be used: {0}")]
    Unusable(String),
}

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    /// The compiled template, or why it is none.
    environment: Result<Environment<'static>, String>,
    /// Special tokens by what they are for, such as `bos_token`.
    specials: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// The template of a checkpoint; `None` where it has none.
    ///
    /// One that does not compile does not keep the checkpoint from being served: its use is what fails.
    ///
    /// # Errors
    /// When a file that may hold it cannot be read as what it is.
    pub fn open(files: &CheckpointFiles) -> Result<Option<Self>, LoadError> {
        let Some(source) = source::template(files)? else { return Ok(None) };
        let environment = compile(&source);
        if let Err(reason) = &environment {
            tracing::warn!(checkpoint = files.place(), reason, "the chat template does not compile");
        }
        Ok(Some(Self { source, environment, specials: special_tokens(files)? }))
    }

    /// The template as the checkpoint has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// When the template refuses the conversation, fails on it, or is broken itself.
    pub fn render(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let environment = self.environment.as_ref().map_err(|reason| ChatError::Unusable(reason.clone()))?;
        let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
        variables.extend(self.specials.iter().map(|(name, token)| (name.as_str(), Value::from(token))));
        let given = conversation.variables.iter();
        variables.extend(given.map(|(name, value)| (name.as_str(), Value::from_serialize(value))));
        variables.insert("messages", Value::from_serialize(&conversation.messages));
        variables.insert("add_generation_prompt", conversation.add_generation_prompt.into());
        // The original passes these always, as None where there are none.
        for absent in ["tools", "documents"] {
            variables.entry(absent).or_insert(Value::from(()));
        }
        let template = environment.get_template(NAME).map_err(|error| failure(&error))?;
        template.render(variables).map_err(|error| failure(&error))
    }
}

/// As Hugging Face sets up Jinja.
fn compile(source: &str) -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    functions::add_to(&mut environment);
    let source = source::without_generation_tags(source);
    environment.add_template_owned(NAME, source).map_err(|error| one_line(&error))?;
    Ok(environment)
}

fn failure(error: &minijinja::Error) -> ChatError {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let raised = causes.filter_map(|cause| cause.downcast_ref::<Raised>()).next();
    raised.map_or_else(|| ChatError::Unusable(one_line(error)), |raised| ChatError::Refused(raised.0.clone()))
}

fn one_line(error: &minijinja::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;

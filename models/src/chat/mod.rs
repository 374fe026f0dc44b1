//! Renders conversations with a checkpoint's chat template, with the semantics of Hugging Face.
//!
//! In: a checkpoint's template and special tokens; later messages. Out: the prompt's text including all
//! special tokens, so that tokenization adds none. A template is untrusted input: `bounds` limits its
//! computation.

mod bounds;
mod functions;
mod source;

use std::collections::BTreeMap;

use minijinja::{Environment, Value};
use serde::Serialize;

use crate::checkpoint::{CheckpointFiles, LoadError};

use functions::Raised;

/// One message, as templates see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Role, such as `user`.
    pub role: String,
    pub content: String,
    /// Distinguishes participants with the same role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A conversation to render.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    pub messages: Vec<ChatMessage>,
    /// Whether the text ends with the beginning of an assistant's message.
    pub add_generation_prompt: bool,
    /// Whether the text ends with the content of the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub variables: BTreeMap<String, serde_json::Value>,
}

/// The reason why a conversation cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template called `raise_exception`.
    #[error("the chat template rejects the conversation: {0}")]
    Refused(String),
    /// The template failed, or does not compile.
    #[error("the chat template of this model cannot be used: {0}")]
    Unusable(String),
    /// The last message cannot be continued.
    #[error("the chat template changes or omits the last message, which `continue_final_message` needs")]
    LastMessageLost,
}

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    /// The text that is compiled, without the parts that only training needs.
    rewritten: String,
    /// Functions and bounds, or the reason why the template does not compile.
    environment: Result<Environment<'static>, String>,
    /// Special tokens by purpose, such as `bos_token`.
    specials: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Opens the template of a checkpoint; `None` if it has none. If the template does not compile, this logs
    /// a warning and [`render`](Self::render) fails, since the checkpoint can be served without it.
    pub fn open(
        files: &CheckpointFiles,
        specials: BTreeMap<String, String>,
    ) -> Result<Option<Self>, LoadError> {
        let Some(source) = source::template(files)? else { return Ok(None) };
        let rewritten = source::without_generation_tags(&source);
        let environment = bounds::check(&rewritten).map(|()| environment()).map_err(|error| one_line(&error));
        if let Err(reason) = &environment {
            tracing::warn!(checkpoint = files.place(), reason, "the chat template does not compile");
        }
        Ok(Some(Self { source, rewritten, environment, specials }))
    }

    /// Returns the template as stored.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn render(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let environment = self.environment.as_ref().map_err(|reason| ChatError::Unusable(reason.clone()))?;
        let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
        variables.extend(self.specials.iter().map(|(name, token)| (name.as_str(), Value::from(token))));
        let given = conversation.variables.iter();
        variables.extend(given.map(|(name, value)| (name.as_str(), Value::from_serialize(value))));
        variables.insert("messages", Value::from_serialize(&conversation.messages));
        variables.insert("add_generation_prompt", conversation.add_generation_prompt.into());
        // Hugging Face always passes these variables, with the value None if there are none.
        for absent in ["tools", "documents"] {
            variables.entry(absent).or_insert(Value::from(()));
        }
        let text = bounds::render(environment, &self.rewritten, Value::from_serialize(&variables))
            .map_err(|error| failure(&error))?;
        match conversation.messages.last().filter(|_| conversation.continue_final_message) {
            Some(last) => up_to(text, &last.content).ok_or(ChatError::LastMessageLost),
            None => Ok(text),
        }
    }
}

/// Cuts `text` after the last occurrence of `content`. Templates may trim messages.
fn up_to(mut text: String, content: &str) -> Option<String> {
    let start = text.rfind(content.trim())?;
    let untrimmed = content.trim_start();
    let length = if text[start..].starts_with(untrimmed) { untrimmed.len() } else { content.trim().len() };
    text.truncate(start + length);
    Some(text)
}

/// Maximum size of an error message in bytes. A template may choose its text.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Sets up Jinja in the same way as Hugging Face.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    functions::add_to(&mut environment);
    bounds::add_to(&mut environment);
    environment
}

fn failure(error: &minijinja::Error) -> ChatError {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let raised = causes.filter_map(|cause| cause.downcast_ref::<Raised>()).next();
    raised.map_or_else(
        || ChatError::Unusable(one_line(error)),
        |raised| ChatError::Refused(shortened(raised.0.clone())),
    )
}

fn one_line(error: &minijinja::Error) -> String {
    shortened(error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests;

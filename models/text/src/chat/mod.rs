//! Renders conversations with a checkpoint's chat template, with the semantics of Hugging Face.
//!
//! In: a checkpoint's template and special tokens; later messages. Out: the prompt's text including all
//! special tokens, so that tokenization adds none. A template is untrusted input: `bounds` limits its
//! computation.

mod bounds;
mod described;
mod functions;
mod source;
mod text_template;

use std::collections::BTreeMap;

use minijinja::{Environment, Value};
use serde::Serialize;

use crate::checkpoint::{CheckpointFiles, LoadError};

use described::{DescribedIn, is_described};
use functions::Raised;
pub use text_template::{TextTemplate, json_line};

/// One message, as templates see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChatMessage {
    /// Role, such as `user`. A template that does not name `developer` gets `system` instead.
    pub role: String,
    /// `None` only if the message has tool calls instead.
    pub content: Option<String>,
    /// Distinguishes participants with the same role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The calls of an assistant's message, with the arguments as objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<serde_json::Value>,
    /// The call whose result the message is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A conversation to render.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    pub messages: Vec<ChatMessage>,
    /// The functions that the assistant may call, as OpenAI's API describes them.
    pub tools: Vec<serde_json::Value>,
    /// The documents that the assistant may read, with texts such as `title` and `text`.
    pub documents: Vec<BTreeMap<String, String>>,
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
    /// The template never reads the tools.
    #[error(
        "the chat template of this model does not support tools; start the server with another one (--chat-template), or with \
         --tool-parser hermes, which describes the tools in a system message"
    )]
    NoTools,
    /// The template never reads the documents.
    #[error("the chat template of this model does not support documents")]
    NoDocuments,
}

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    /// The template for conversations with tools, if it is a separate one.
    tool_template: Option<Template>,
    /// Special tokens by purpose, such as `bos_token`.
    specials: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Template {
    source: String,
    /// The text that is compiled, without the parts that only training needs.
    rewritten: String,
    /// Functions and bounds, or the reason why the template does not compile.
    environment: Result<Environment<'static>, String>,
    /// Whether it reads the variable `tools`.
    reads_tools: bool,
    /// Whether it reads the variable `documents`.
    reads_documents: bool,
    /// Whether it names the role `developer`.
    knows_developer: bool,
}

impl ChatTemplate {
    /// Opens the template of a checkpoint; `None` if it has none. If the template does not compile, this logs
    /// a warning and [`render`](Self::render) fails, since the checkpoint can be served without it.
    pub fn open(
        files: &CheckpointFiles,
        specials: BTreeMap<String, String>,
    ) -> Result<Option<Self>, LoadError> {
        let Some(sources) = source::templates(files)? else { return Ok(None) };
        let tool_template = sources.tool_use.map(|source| Template::new(source, files.place()));
        let template = Template::new(sources.default, files.place());
        Ok(Some(Self { template, tool_template, specials }))
    }

    /// Returns the template as stored.
    pub fn source(&self) -> &str {
        &self.template.source
    }

    /// Returns the template for conversations with tools as stored.
    pub fn tools_source(&self) -> &str {
        &self.with_tools().source
    }

    fn with_tools(&self) -> &Template {
        self.tool_template.as_ref().unwrap_or(&self.template)
    }

    pub fn render(&self, conversation: &Conversation) -> Result<String, ChatError> {
        if conversation.continue_final_message
            && let Some(last) = conversation.messages.last()
        {
            let text = self.whole(&conversation.with_mark())?;
            return up_to_mark(text, last.text()).ok_or(ChatError::LastMessageLost);
        }
        self.whole(conversation)
    }

    /// Returns the reason why the template does not compile, or `None` if it does.
    pub fn problem(&self) -> Option<&str> {
        let mut templates = std::iter::once(&self.template).chain(&self.tool_template);
        templates.find_map(|template| template.environment.as_ref().err()).map(String::as_str)
    }

    /// Returns whether the template reads tools.
    pub fn reads_tools(&self) -> bool {
        self.with_tools().reads_tools
    }

    /// Renders a conversation for a template that reads no tools: its system message describes them in the
    /// form of Hermes. If the template has no system messages, the first message of the user describes them.
    pub fn render_describing_tools(&self, conversation: &Conversation) -> Result<String, ChatError> {
        match self.render(&conversation.described(DescribedIn::SystemMessage)) {
            Ok(text) if conversation.tools.is_empty() || is_described(&text) => Ok(text),
            Ok(_) | Err(ChatError::Refused(_)) => {
                self.render(&conversation.described(DescribedIn::UserMessage))
            }
            Err(error) => Err(error),
        }
    }

    /// Renders all that the template writes.
    fn whole(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let template = if conversation.tools.is_empty() { &self.template } else { self.with_tools() };
        match template.render(conversation, &self.specials) {
            // Some templates test whether the content is null, others concatenate it.
            Err(ChatError::Unusable(_)) if conversation.has_null_content() => {
                template.render(&conversation.without_null_content(), &self.specials)
            }
            text => text,
        }
    }
}

impl Template {
    fn new(source: String, place: &str) -> Self {
        let rewritten = source::without_generation_tags(&source);
        let environment = bounds::check(&rewritten).map(|()| environment()).map_err(|error| one_line(&error));
        if let Err(reason) = &environment {
            tracing::warn!(checkpoint = place, reason, "the chat template does not compile");
        }
        let compiled =
            environment.as_ref().ok().and_then(|environment| environment.template_from_str(&rewritten).ok());
        let variables = compiled.map(|template| template.undeclared_variables(false)).unwrap_or_default();
        let [reads_tools, reads_documents] = ["tools", "documents"].map(|name| variables.contains(name));
        let knows_developer = source.contains("developer");
        Self { source, rewritten, environment, reads_tools, reads_documents, knows_developer }
    }

    fn render(
        &self,
        conversation: &Conversation,
        specials: &BTreeMap<String, String>,
    ) -> Result<String, ChatError> {
        let environment = self.environment.as_ref().map_err(|reason| ChatError::Unusable(reason.clone()))?;
        let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
        variables.extend(specials.iter().map(|(name, token)| (name.as_str(), Value::from(token))));
        for (name, value) in &conversation.variables {
            variables.insert(name, Value::from_serialize(value));
        }
        let mut messages = conversation.messages.clone();
        if !self.knows_developer {
            for message in messages.iter_mut().filter(|message| message.role == "developer") {
                message.role = "system".to_owned();
            }
        }
        variables.insert("messages", Value::from_serialize(messages));
        variables.insert("add_generation_prompt", conversation.add_generation_prompt.into());
        if !conversation.tools.is_empty() {
            if !self.reads_tools {
                return Err(ChatError::NoTools);
            }
            variables.insert("tools", Value::from_serialize(&conversation.tools));
        }
        if !conversation.documents.is_empty() {
            if !self.reads_documents {
                return Err(ChatError::NoDocuments);
            }
            variables.insert("documents", Value::from_serialize(&conversation.documents));
        }
        // Hugging Face always passes these variables, with the value None if there are none.
        for absent in ["tools", "documents"] {
            variables.entry(absent).or_insert(Value::from(()));
        }
        bounds::render(environment, &self.rewritten, Value::from_serialize(&variables))
            .map_err(|error| failure(&error))
    }
}

impl ChatMessage {
    /// A message with this content alone.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: Some(content.into()), ..Self::default() }
    }

    /// The content, which may be absent.
    pub fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }
}

impl Conversation {
    fn has_null_content(&self) -> bool {
        self.messages.iter().any(|message| message.content.is_none())
    }

    fn without_null_content(&self) -> Self {
        let mut conversation = self.clone();
        for message in &mut conversation.messages {
            message.content.get_or_insert_default();
        }
        conversation
    }

    /// Adds the mark to the last message.
    fn with_mark(&self) -> Self {
        let mut conversation = self.clone();
        if let Some(last) = conversation.messages.last_mut() {
            last.content.get_or_insert_default().push_str(MARK);
        }
        conversation
    }
}

/// Follows the last message where the model continues it. The template may trim the space.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Cuts `text` before the mark after `content`, which the template may trim.
fn up_to_mark(mut text: String, content: &str) -> Option<String> {
    let end = text.rfind(MARK.trim_end())?;
    let is_trimmed = !text[end..].starts_with(MARK);
    text.truncate(end);
    let space = &content[content.trim_end().len()..];
    if is_trimmed && let Some(trimmed) = text.strip_suffix(space) {
        text.truncate(trimmed.len());
    }
    text.contains(content.trim()).then_some(text)
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

//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::completions::{FinishReason, Stop, StreamOptions, Usage};
use crate::number::{Number, NumberRequest};
use crate::whole::whole;

/// What a message says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string or a list of parts such as {\"type\": \"text\", \"text\": \"...\"}")]
pub enum ChatContent {
    /// As one text.
    Text(String),
    /// In parts, of which only texts are served.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContentPart {
    /// What it is; `text` is served.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatRequestMessage {
    /// Who says it: `system`, `developer`, `user` or `assistant`, as far as the template knows them.
    #[schema(pattern = "^(system|developer|user|assistant)$")]
    pub role: String,
    /// What is said. Null is an empty text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ChatContent>,
    /// Name of the speaker, for templates that write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Everything else that was sent, so that calls of tools can be refused by name.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Body of a chat request. `None` is the default everywhere; unknown fields are ignored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// Name of the model; may be left out where only one is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<ChatRequestMessage>, required = true, min_items = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<ChatRequestMessage>>,
    /// Most tokens of the answer. Default: as many as the model's context has room for, within what the server allows.
    /// With `number.after` most tokens of the text before the number, by default 256.
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u64>,
    /// The same under its older name.
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Answers, 1 to 128. Default 1.
    #[schema(minimum = 1, maximum = 128)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Up to four strings that end an answer before them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Report the log-probability of each token. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Only with `logprobs`: also of this many alternatives, 0 to 20. Default 0.
    #[schema(maximum = 20)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u64>,
    /// Answer by server-sent events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Only with `stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Decode a number with its distribution instead of text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<NumberRequest>,
    /// Whether the template begins the answer. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// More variables for the template, such as `enable_thinking`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// Everything else: fields that completions have as well (`temperature`, `top_p`, `seed`, ...) mean the same here.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatToken {
    /// How it reads.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// Its text in UTF-8, which may be a part of a character.
    pub bytes: Option<Vec<u8>>,
}

/// A token of an answer, with what else could stand there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatTokenLogprobs {
    /// The token itself.
    #[serde(flatten)]
    pub token: ChatToken,
    /// The most probable tokens there, best first.
    pub top_logprobs: Vec<ChatToken>,
    /// With `number_tokens`: sum over number tokens of renormalised probability times value; null where no number token
    /// is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_value: Option<Option<f64>>,
    /// With `number_tokens`: probability of all number tokens together; null where none is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_mass: Option<Option<f64>>,
}

/// Log-probabilities of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry a token.
    pub content: Vec<ChatTokenLogprobs>,
    /// Always null: no refusal is told apart.
    pub refusal: Option<Vec<ChatTokenLogprobs>>,
}

/// An answer, or in a stream what is new of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatAnswer {
    /// `assistant`; in a stream only in the first piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// The message of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Always null.
    pub refusal: Option<String>,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    /// Number of the answer.
    pub index: u64,
    /// The answer.
    pub message: ChatMessage,
    /// Null unless asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
    /// The number and its distribution, when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<Number>,
}

/// What is new of one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Number of the answer.
    pub index: u64,
    /// What is new.
    pub delta: ChatAnswer,
    /// Of the new tokens; null unless asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Null while the answer goes on.
    pub finish_reason: Option<FinishReason>,
    /// The number and its distribution, when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<Number>,
}

/// Body of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatResponse {
    /// Unique name of the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The answers, by index.
    pub choices: Vec<ChatChoice>,
    /// Counted tokens.
    pub usage: Option<Usage>,
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunk {
    /// Unique name of the answer, the same in all its events.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// What is new.
    pub choices: Vec<ChatChunkChoice>,
    /// Counted tokens: null but in the last event, when asked for.
    pub usage: Option<Usage>,
}

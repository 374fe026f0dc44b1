//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::completions::{FinishReasonName, PromptLogprobs, Stop, StopReasonValue, StreamOptions, Usage};
use crate::fields::LocatedField;
use crate::number::{LocatedNumber, Number, NumberRequest};
use crate::tools::{ChatTool, ChatToolChoice, ToolCall, ToolCallDelta};
use crate::whole::whole;

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string or a list of parts such as {\"type\": \"text\", \"text\": \"...\"}")]
pub enum ChatContent {
    /// One text.
    Text(String),
    /// A list of parts; only text parts are supported.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContentPart {
    /// The type of the part; only `text` is supported.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a text part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// All other fields. The server accepts those that change nothing, and rejects any other with an error
    /// that names the field.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// A message of a conversation.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatRequestMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`, if the chat template supports the role.
    #[schema(pattern = "^(system|developer|user|assistant|tool)$")]
    pub role: String,
    /// The content. Null means an empty text, or only calls of functions.
    pub content: Option<ChatContent>,
    /// Name of the speaker, for templates that use it.
    pub name: Option<String>,
    /// The functions that the assistant called.
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Id of the call whose result the content is; only for `tool`.
    pub tool_call_id: Option<String>,
    /// All other fields. The server accepts those that change nothing, and rejects any other with an error
    /// that names the field.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Body of a chat request. Null means the default in every field; unknown fields are errors.
#[serde_with::apply(Option<u64> => #[serde(default, deserialize_with = "whole")])]
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<ChatRequestMessage>, required = true, min_items = 1)]
    pub messages: Option<Vec<ChatRequestMessage>>,
    /// Maximum number of tokens of the answer. Default: as many as fit the model's context, within the limit
    /// of the server. With `number.after`: maximum number of tokens of the text before the number, default
    /// 256. A number is never cut.
    pub max_completion_tokens: Option<u64>,
    /// The older name of `max_completion_tokens`.
    pub max_tokens: Option<u64>,
    /// Number of answers, 1 to 128. Default 1.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u64>,
    /// Up to four strings; an answer ends before the first of them.
    pub stop: Option<Stop>,
    /// Report the log-probability of each token. Default false.
    pub logprobs: Option<bool>,
    /// Only with `logprobs`: number of alternatives to each token, 0 to 20. Default 0.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u64>,
    /// Stream the response as server-sent events. Default false.
    pub stream: Option<bool>,
    /// Options of the stream. Only with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Decode a number with its distribution instead of a text. With a JSON schema: write a text of the
    /// schema with the distribution of every number that the schema names.
    pub number: Option<NumberRequest>,
    /// Repeat the last message before the response if the assistant wrote that message, as in vLLM. Default
    /// false.
    pub echo: Option<bool>,
    /// Whether the template adds the beginning of the assistant's message. Default true, or false with
    /// `continue_final_message` and for models that predict labels.
    pub add_generation_prompt: Option<bool>,
    /// Whether the answer continues the last message, as if the assistant had begun it. Not with
    /// `add_generation_prompt`: true. Default false.
    pub continue_final_message: Option<bool>,
    /// Whether the tokenizer adds special tokens to those that the template writes. Default false.
    pub add_special_tokens: Option<bool>,
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`: the variable `reasoning_effort` for the
    /// template. Templates without it ignore the field.
    pub reasoning_effort: Option<String>,
    /// Functions that the model may call, if its chat template supports tools; at most 128.
    pub tools: Option<Vec<ChatTool>>,
    /// `none`: the model calls no function. `auto`: it decides. `required`: it calls at least one. A
    /// function: it calls this one. `allowed_tools`: it calls only these. Default `auto`.
    pub tool_choice: Option<ChatToolChoice>,
    /// Whether a message may have several calls. Default true.
    pub parallel_tool_calls: Option<bool>,
    /// Documents for the template, if it supports them: objects of texts, usually `title` and `text`.
    pub documents: Option<Vec<BTreeMap<String, String>>>,
    /// Additional variables for the template, such as `enable_thinking`.
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// All other fields. Fields of completions (`temperature`, `top_p`, `seed`, ...) have the same meaning
    /// here.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatToken {
    /// Text of the token.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// UTF-8 bytes of the token, which may be a part of a character.
    pub bytes: Option<Vec<u8>>,
}

/// A token of an answer and the alternatives to it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatTokenLogprobs {
    /// The token itself.
    #[serde(flatten)]
    pub token: ChatToken,
    /// The most probable tokens at this position, best first.
    pub top_logprobs: Vec<ChatToken>,
    /// With `number_tokens`: sum over number tokens of renormalised probability times value; null if no
    /// number token is possible.
    pub number_value: Option<Option<f64>>,
    /// With `number_tokens`: probability of all number tokens together; null if none is possible.
    pub number_mass: Option<Option<f64>>,
}

/// Log-probabilities of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry for each token.
    pub content: Vec<ChatTokenLogprobs>,
    /// Always null: the server does not detect refusals.
    pub refusal: Option<Vec<ChatTokenLogprobs>>,
}

/// The new part of an answer in a stream.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatAnswer {
    /// `assistant`, in the first chunk only.
    pub role: Option<String>,
    /// The text.
    pub content: Option<String>,
    /// The new part of a call.
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

/// The message of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ChatMessage)]
pub struct ChatResponseMessage {
    /// `assistant`.
    pub role: String,
    /// The text; null if the message has only calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// The functions that the model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
}

/// One answer.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    /// Index of the answer.
    pub index: u64,
    /// The answer.
    pub message: ChatResponseMessage,
    /// Log-probabilities of the tokens; null unless requested.
    #[serialize_always]
    pub logprobs: Option<ChatLogprobs>,
    /// Why the answer ended.
    #[serialize_always]
    pub finish_reason: Option<FinishReasonName>,
    /// The text of `stop` or the token id of `stop_token_ids` that ended the text.
    pub stop_reason: Option<StopReasonValue>,
    /// The number and its distribution, if requested.
    pub number: Option<Number>,
    /// All numbers of an answer that has several: those that a JSON schema names, in the order of the text,
    /// or those that the model writes one after the other, of which `number` is the first. In a stream, each
    /// number of a structured text comes after its text.
    pub numbers: Option<Vec<LocatedNumber>>,
    /// With `number` and a JSON schema: the distribution of every number that the schema names, and of every
    /// value of which it lists the alternatives, in the order of the text.
    pub fields: Option<Vec<LocatedField>>,
    /// With `return_token_ids`: the token ids of the response, including an end of sequence.
    pub token_ids: Option<Vec<u32>>,
}

/// The new part of one choice.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Index of the answer.
    pub index: u64,
    /// The new part.
    pub delta: ChatAnswer,
    /// Log-probabilities of the new tokens; null unless requested.
    #[serialize_always]
    pub logprobs: Option<ChatLogprobs>,
    /// Null in all chunks except the last one of a choice.
    #[serialize_always]
    pub finish_reason: Option<FinishReasonName>,
    /// The text of `stop` or the token id of `stop_token_ids` that ended the text.
    pub stop_reason: Option<StopReasonValue>,
    /// The number and its distribution, if requested.
    pub number: Option<Number>,
    /// All numbers of an answer that has several: those that a JSON schema names, in the order of the text,
    /// or those that the model writes one after the other, of which `number` is the first. In a stream, each
    /// number of a structured text comes after its text.
    pub numbers: Option<Vec<LocatedNumber>>,
    /// With `number` and a JSON schema: the distribution of every number that the schema names, and of every
    /// value of which it lists the alternatives, in the order of the text.
    pub fields: Option<Vec<LocatedField>>,
    /// With `return_token_ids`: the token ids of the new part, including an end of sequence.
    pub token_ids: Option<Vec<u32>>,
}

/// Body of a response.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatResponse {
    /// Unique id of the response.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// `fingerprint` of the model in `/v1/models`.
    pub system_fingerprint: Option<String>,
    /// The answers, by index.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    #[serialize_always]
    pub usage: Option<Usage>,
    /// With `return_token_ids`: the token ids of the prompt.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// With `prompt_logprobs`: log-probabilities of the tokens of the prompt.
    #[schema(inline)]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunk {
    /// Unique id of the response, the same in all its chunks.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// `fingerprint` of the model in `/v1/models`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
    /// The new part.
    pub choices: Vec<ChatChunkChoice>,
    /// Token counts: null, except in the last chunk if requested.
    pub usage: Option<Usage>,
    /// With `return_token_ids`: the token ids of the prompt, in the first chunk only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

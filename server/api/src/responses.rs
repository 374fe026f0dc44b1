//! `POST /v1/responses`, without stored responses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::chat::ChatTokenLogprobs;
use crate::completions::EngineTokens;
use crate::number::{LocatedNumber, Number, NumberRequest};
use crate::object::read_from_objects;
use crate::tools::{FunctionDefinition, ToolChoiceMode};
use crate::whole::whole;

read_from_objects!(
    ResponsesText,
    ResponsesFormat,
    ResponsesReasoning,
    ResponsesFunctionChoice,
    ResponsesAllowedChoice
);

/// Body of a request for a response. Null means the default in every field; unknown fields are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// A text of the user, or a list of messages, calls of functions and their results.
    #[schema(value_type = ResponsesInput, required = true)]
    pub input: Option<ResponsesInput>,
    /// A message of the system before the input.
    pub instructions: Option<String>,
    /// The format of the text.
    pub text: Option<ResponsesText>,
    /// Functions that the model may call, if its chat template supports tools; at most 128.
    pub tools: Option<Vec<ResponsesTool>>,
    /// `none`: the model calls no function. `auto`: it decides. `required`: it calls at least one. A
    /// function: it calls this one. `allowed_tools`: it calls only these. Default `auto`.
    pub tool_choice: Option<ResponsesToolChoice>,
    /// Whether a response may have several calls. Default true.
    pub parallel_tool_calls: Option<bool>,
    /// Maximum number of tokens of the output. Default: as many as fit the model's context, within the limit
    /// of the server.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "whole")]
    pub max_output_tokens: Option<u64>,
    /// 0 takes the most probable token; higher values flatten the distribution. Default 1.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f64>,
    /// Draw from the most probable tokens that together have this probability. Default 1.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Makes sampling reproducible.
    #[serde(default, deserialize_with = "whole")]
    pub seed: Option<i64>,
    /// Additional parts of the response. `message.output_text.logprobs` adds the log-probabilities of the
    /// text's tokens. The other names of OpenAI's API are about items that this server does not write.
    pub include: Option<Vec<String>>,
    /// Number of alternatives to each token, 0 to 20. Above 0, the response has the log-probabilities without
    /// `include`, too. Default 0.
    #[schema(maximum = 20)]
    #[serde(default, deserialize_with = "whole")]
    pub top_logprobs: Option<u64>,
    /// Options for models that reason.
    pub reasoning: Option<ResponsesReasoning>,
    /// Up to 16 texts by name, which the response repeats.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Stream the response as server-sent events. Default false.
    pub stream: Option<bool>,
    /// Decode a number with its distribution instead of a text.
    pub number: Option<NumberRequest>,
    /// Additional variables for the template, such as `enable_thinking`.
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// All other fields. Some fields of completions, such as `stop`, `top_k` and `structured_outputs`, have
    /// the same meaning here, as in vLLM.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// The input of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string or a list of items")]
pub enum ResponsesInput {
    /// A text of the user.
    Text(String),
    /// Messages, calls and results in their order.
    Items(Vec<ResponsesInputItem>),
}

/// An item of the input: a message, a call of a function, or the result of a call.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesInputItem {
    /// `message` (the default), `function_call` or `function_call_output`.
    #[serde(rename = "type", default)]
    #[schema(pattern = "^(message|function_call|function_call_output)$")]
    pub kind: Option<String>,
    /// Role of a message: `system`, `developer`, `user` or `assistant`.
    pub role: Option<String>,
    /// Content of a message.
    pub content: Option<ResponsesContent>,
    /// Id of the call, in a call and in its result.
    pub call_id: Option<String>,
    /// Name of the function, in a call.
    pub name: Option<String>,
    /// Arguments of a call: the text of a JSON object.
    pub arguments: Option<String>,
    /// Result of a call.
    pub output: Option<ResponsesContent>,
    /// All other fields. The server accepts those that it writes itself.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "a string or a list of parts such as {\"type\": \"input_text\", \"text\": \"...\"}"
)]
pub enum ResponsesContent {
    /// One text.
    Text(String),
    /// A list of parts; only texts are supported.
    Parts(Vec<ResponsesPart>),
}

/// A part of a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesPart {
    /// `input_text` or `output_text`.
    #[serde(rename = "type")]
    #[schema(pattern = "^(input_text|output_text|text)$")]
    pub kind: String,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// All other fields. The server accepts those that it writes itself.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Options of the text.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ResponsesText {
    /// The format of the text. Default: any text.
    pub format: Option<ResponsesFormat>,
    /// `medium`, or absent: the model decides about the length.
    pub verbosity: Option<String>,
}

/// The format of the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResponsesFormat {
    /// Any text.
    Text {},
    /// A JSON object.
    JsonObject {},
    /// JSON that matches a schema.
    JsonSchema {
        /// A name; not used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// A description; not used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// The schema.
        #[schema(value_type = Object)]
        schema: Map<String, Value>,
        /// Without effect: the text always matches the schema.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        strict: Option<bool>,
    },
}

/// A function that the model may call.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesTool {
    /// `function`; there are no other tools.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$")]
    pub kind: String,
    /// Up to 64 letters, digits, `_`, `-` and `.`.
    #[schema(required = true)]
    pub name: Option<String>,
    /// Purpose of the function, for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments. Default: no arguments.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Whether the arguments always match the schema. They also do if `tool_choice` requires a call. Default
    /// false.
    pub strict: Option<bool>,
    /// All other fields, which other kinds of tools have.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

impl ResponsesTool {
    /// The function of the tool.
    pub fn into_function(self) -> FunctionDefinition {
        let Self { name, description, parameters, strict, .. } = self;
        FunctionDefinition { name: name.unwrap_or_default(), description, parameters, strict }
    }
}

/// Whether the model calls functions, or which function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "`none`, `auto`, `required`, a function such as {\"type\": \"function\", \"name\": \"...\"}, or `allowed_tools`"
)]
pub enum ResponsesToolChoice {
    /// `none`, `auto` or `required`.
    Mode(ToolChoiceMode),
    /// This function.
    Function(ResponsesFunctionChoice),
    /// Only these functions.
    Allowed(ResponsesAllowedChoice),
}

/// The functions that the model may call, of all that it sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ResponsesAllowedChoice {
    /// `allowed_tools`.
    #[serde(rename = "type")]
    #[schema(pattern = "^allowed_tools$")]
    pub kind: String,
    /// `auto` or `required`.
    #[schema(pattern = "^(auto|required)$")]
    pub mode: ToolChoiceMode,
    /// The functions, at least one.
    #[schema(min_items = 1)]
    pub tools: Vec<ResponsesFunctionChoice>,
}

/// The function to call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ResponsesFunctionChoice {
    /// `function`.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$")]
    pub kind: String,
    /// One of the names in `tools`.
    pub name: String,
}

/// Options for models that reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ResponsesReasoning {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`: the variable `reasoning_effort` for the
    /// chat template.
    pub effort: Option<String>,
    /// No effect: responses have no summaries.
    pub summary: Option<String>,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesResponse {
    /// Unique id. Responses are not stored.
    pub id: String,
    /// `response`.
    pub object: String,
    /// Unix time in seconds.
    pub created_at: u64,
    /// Whether the response is complete.
    pub status: ResponsesStatus,
    /// Why it failed.
    pub error: Option<ResponsesError>,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The message, and the calls of functions.
    pub output: Vec<ResponsesOutputItem>,
    /// The model that answered.
    pub model: String,
    /// Token counts, once they are known.
    pub usage: Option<ResponsesUsage>,
    /// The fields of the request.
    #[serde(flatten)]
    pub request: ResponsesSettings,
}

/// The fields of a request that its response repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesSettings {
    /// The instructions of the request.
    pub instructions: Option<String>,
    /// The maximum of the request.
    pub max_output_tokens: Option<u64>,
    /// The metadata of the request.
    pub metadata: BTreeMap<String, String>,
    /// Whether the request allows several calls.
    pub parallel_tool_calls: bool,
    /// Always null: responses are not stored.
    pub previous_response_id: Option<String>,
    /// The options of the request.
    pub reasoning: ResponsesReasoning,
    /// Always false.
    pub store: bool,
    /// The temperature of the request.
    pub temperature: f64,
    /// The format of the request.
    pub text: ResponsesText,
    /// The choice of the request.
    pub tool_choice: ResponsesToolChoice,
    /// The functions of the request.
    pub tools: Vec<ResponsesTool>,
    /// The number of alternatives to each token.
    pub top_logprobs: u64,
    /// The `top_p` of the request.
    pub top_p: f64,
    /// Always `disabled`.
    pub truncation: String,
}

/// Whether a response or an item is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponsesStatus {
    /// It is being written.
    InProgress,
    /// It is complete.
    Completed,
    /// `max_output_tokens` was reached.
    Incomplete,
    /// The server failed.
    Failed,
}

/// Why a response failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesError {
    /// The code of the error.
    pub code: String,
    /// The message of the error.
    pub message: String,
}

/// Why a response is incomplete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`.
    pub reason: String,
}

/// An item of the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponsesOutputItem {
    /// The text or the number.
    Message {
        /// Unique id.
        id: String,
        /// Whether it is complete.
        status: ResponsesStatus,
        /// `assistant`.
        role: String,
        /// The text, as one part.
        content: Vec<ResponsesOutputPart>,
    },
    /// A call of a function.
    FunctionCall {
        /// Unique id.
        id: String,
        /// Whether it is complete.
        status: ResponsesStatus,
        /// Id of the call, for the item with its result.
        call_id: String,
        /// Name of the function.
        name: String,
        /// The arguments: the text of a JSON object.
        arguments: String,
        /// The numbers of the arguments, if requested; the paths begin at the arguments.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        numbers: Option<Vec<LocatedNumber>>,
    },
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponsesOutputPart {
    /// A text.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        #[schema(inline)]
        annotations: Vec<Value>,
        /// The log-probabilities of the tokens, if requested.
        logprobs: Vec<ChatTokenLogprobs>,
        /// The number and its distribution, if requested.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<Box<Number>>,
        /// All numbers of a text that has several, as in chats.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        numbers: Option<Vec<LocatedNumber>>,
    },
}

/// Token counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesUsage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Parts of the prompt.
    pub input_tokens_details: InputTokensDetails,
    /// Decoded tokens.
    pub output_tokens: u64,
    /// Parts of the output.
    pub output_tokens_details: OutputTokensDetails,
    /// Sum of both.
    pub total_tokens: u64,
    /// The work of another engine, if one computes the model and probabilities or samples were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x_engine: Option<EngineTokens>,
}

/// Parts of the prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputTokensDetails {
    /// Always 0: the server does not report its prefix cache here.
    pub cached_tokens: u64,
    /// Always 0, for the same reason.
    pub cache_write_tokens: u64,
}

/// Parts of the output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputTokensDetails {
    /// Always 0: the server does not separate reasoning from text.
    pub reasoning_tokens: u64,
}

/// A named server-sent event, as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamedStreamEvent {
    /// The `type` of the event.
    pub event: String,
    /// A `ResponsesEvent` as JSON.
    pub data: String,
}

/// An event of a streamed response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponsesEvent {
    /// Number of the event in the stream, from 0.
    pub sequence_number: u64,
    /// The event.
    #[serde(flatten)]
    pub body: ResponsesEventBody,
}

/// The content of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type")]
pub enum ResponsesEventBody {
    /// The response begins.
    #[serde(rename = "response.created")]
    Created {
        /// The response so far.
        response: Box<ResponsesResponse>,
    },
    /// The response is being written.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// The response so far.
        response: Box<ResponsesResponse>,
    },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Index of the item in the output.
        output_index: u64,
        /// The item so far.
        item: ResponsesOutputItem,
    },
    /// The text of a message begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        /// Id of the message.
        item_id: String,
        /// Index of the message in the output.
        output_index: u64,
        /// Always 0.
        content_index: u64,
        /// The part so far.
        part: ResponsesOutputPart,
    },
    /// More text.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// Id of the message.
        item_id: String,
        /// Index of the message in the output.
        output_index: u64,
        /// Always 0.
        content_index: u64,
        /// The new text.
        delta: String,
        /// The log-probabilities of its tokens, if requested.
        logprobs: Vec<ChatTokenLogprobs>,
    },
    /// The whole text.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// Id of the message.
        item_id: String,
        /// Index of the message in the output.
        output_index: u64,
        /// Always 0.
        content_index: u64,
        /// The whole text.
        text: String,
        /// The log-probabilities of its tokens, if requested.
        logprobs: Vec<ChatTokenLogprobs>,
    },
    /// The text of a message is complete.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        /// Id of the message.
        item_id: String,
        /// Index of the message in the output.
        output_index: u64,
        /// Always 0.
        content_index: u64,
        /// The whole part.
        part: ResponsesOutputPart,
    },
    /// More of the arguments of a call.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// Id of the item of the call.
        item_id: String,
        /// Index of the item in the output.
        output_index: u64,
        /// The new text.
        delta: String,
    },
    /// The arguments of a call.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// Id of the item of the call.
        item_id: String,
        /// Index of the item in the output.
        output_index: u64,
        /// Name of the function.
        name: String,
        /// The whole text.
        arguments: String,
    },
    /// An item is complete.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Index of the item in the output.
        output_index: u64,
        /// The item.
        item: ResponsesOutputItem,
    },
    /// The response is complete.
    #[serde(rename = "response.completed")]
    Completed {
        /// The response.
        response: Box<ResponsesResponse>,
    },
    /// The response ends at `max_output_tokens`.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// The response.
        response: Box<ResponsesResponse>,
    },
    /// The server failed.
    #[serde(rename = "response.failed")]
    Failed {
        /// The response with the error.
        response: Box<ResponsesResponse>,
    },
}

impl ResponsesEventBody {
    /// The name of the event, which is its `type`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::InProgress { .. } => "response.in_progress",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::PartDone { .. } => "response.content_part.done",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Failed { .. } => "response.failed",
        }
    }
}

//! Functions that a model may call, and calls of them, in chats.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::object::read_from_objects;

read_from_objects!(
    ChatTool,
    FunctionDefinition,
    AllowedToolChoice,
    AllowedTools,
    NamedToolChoice,
    FunctionName,
    ToolCall,
    FunctionCall
);

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ChatTool {
    /// `function`; there are no other tools.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$")]
    pub kind: String,
    /// The function.
    pub function: FunctionDefinition,
}

/// A function: its name, and the schema of its arguments.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct FunctionDefinition {
    /// Up to 64 letters, digits, `_`, `-` and `.`.
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$")]
    pub name: String,
    /// Purpose of the function, for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments. Default: no arguments.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Whether the arguments always match the schema. They also do if `tool_choice` requires a call. Default
    /// false.
    pub strict: Option<bool>,
}

/// Whether the model calls functions, or which function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "`none`, `auto`, `required`, a function such as {\"type\": \"function\", \"function\": {\"name\": \"...\"}}, or `allowed_tools`"
)]
pub enum ChatToolChoice {
    /// `none`, `auto` or `required`.
    Mode(ToolChoiceMode),
    /// This function.
    Function(NamedToolChoice),
    /// Only these functions.
    Allowed(AllowedToolChoice),
}

/// The functions that the model may call, of all that it sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AllowedToolChoice {
    /// `allowed_tools`.
    #[serde(rename = "type")]
    #[schema(pattern = "^allowed_tools$")]
    pub kind: String,
    /// The functions.
    pub allowed_tools: AllowedTools,
}

/// The functions that the model may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AllowedTools {
    /// `auto` or `required`.
    #[schema(pattern = "^(auto|required)$")]
    pub mode: ToolChoiceMode,
    /// The functions, at least one.
    #[schema(min_items = 1)]
    pub tools: Vec<NamedToolChoice>,
}

/// Whether the model calls functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoiceMode {
    /// It calls none, and does not see them.
    None,
    /// It decides.
    Auto,
    /// It calls at least one.
    Required,
}

/// The function to call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct NamedToolChoice {
    /// `function`.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$")]
    pub kind: String,
    /// The function.
    pub function: FunctionName,
}

/// The name of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct FunctionName {
    /// One of the names in `tools`.
    pub name: String,
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct ToolCall {
    /// Id of the call, for the message with its result.
    pub id: String,
    /// `function`.
    #[serde(rename = "type", default = "function")]
    #[schema(pattern = "^function$", required = false)]
    pub kind: String,
    /// The function and its arguments.
    pub function: FunctionCall,
}

fn function() -> String {
    "function".to_owned()
}

/// A function and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct FunctionCall {
    /// Name of the function.
    pub name: String,
    /// The arguments: the text of a JSON object.
    pub arguments: String,
}

/// The new part of a call in a stream.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallDelta {
    /// Index of the call in the message.
    pub index: u64,
    /// Id of the call, in its first part only.
    pub id: Option<String>,
    /// `function`, in the first part only.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// The new part.
    pub function: FunctionCallDelta,
}

/// The new part of a function and its arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionCallDelta {
    /// Name of the function, in the first part only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of the text of the arguments.
    pub arguments: String,
}

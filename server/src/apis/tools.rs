//! Functions that a model may call: validation of the offered functions and of calls in a conversation.
//!
//! Chats and responses write these in different shapes, so the errors take the path of each field.

use std::sync::Arc;

use ntl_api::{AllowedTools, ChatTool, ChatToolChoice, FunctionDefinition, ToolCall, ToolChoiceMode};
use ntl_core::contract::Request;
use ntl_text::chat::Conversation;
use ntl_text::guide::{Answer, CallGrammar, Constraint};
use ntl_text::tools::Guidance;
use serde_json::{Map, Value, json};

use super::number::NumberFormat;
use crate::error::{AppError, check};
use crate::request::{CallParsing, GenerationRequest, Guided, ModelProfile, ToolSupport};

const TOOLS_MAX: usize = 128;

const NAME_BYTES_MAX: usize = 64;

/// Maximum size of one tool in bytes of JSON, and of all together.
const TOOL_BYTES_MAX: usize = 64 << 10;
const ALL_BYTES_MAX: usize = 256 << 10;

/// Maximum number of calls in one message that the grammar allows.
const CALLS_MAX: usize = 16;

/// Whether the model calls functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolChoice {
    Auto,
    Required,
    /// It calls the only callable function once.
    Function,
}

/// The functions that a request offers, at least one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolOffer {
    functions: Vec<FunctionDefinition>,
    /// The names of the functions that the model may call, at least one.
    callable: Vec<String>,
    choice: ToolChoice,
    is_parallel: bool,
}

/// Reads the tools of a chat; `None` if the model is to call none.
pub(super) fn chat_offer(
    tools: Option<Vec<ChatTool>>,
    choice: Option<ChatToolChoice>,
    parallel: Option<bool>,
) -> Result<Option<ToolOffer>, AppError> {
    let tools = tools.unwrap_or_default();
    for (index, tool) in tools.iter().enumerate() {
        check_kind(&format!("tools[{index}].type"), &tool.kind)?;
    }
    let functions = tools.into_iter().map(|tool| tool.function).collect();
    let choice = match choice {
        None => Choice::Mode(ToolChoiceMode::Auto),
        Some(ChatToolChoice::Mode(mode)) => Choice::Mode(mode),
        Some(ChatToolChoice::Function(named)) => {
            check_kind("tool_choice.type", &named.kind)?;
            Choice::Function { name: named.function.name, param: "tool_choice.function.name" }
        }
        Some(ChatToolChoice::Allowed(allowed)) => {
            let AllowedTools { mode, tools } = allowed.allowed_tools;
            let tools = tools.into_iter().map(|tool| (tool.kind, tool.function.name)).collect();
            allowed_choice(&allowed.kind, mode, tools, "tool_choice.allowed_tools")?
        }
    };
    offer(functions, choice, parallel, |index| format!("tools[{index}].function"))
}

/// `tool_choice`, with the field of the names.
pub(super) enum Choice {
    Mode(ToolChoiceMode),
    Function { name: String, param: &'static str },
    Allowed { mode: ToolChoiceMode, names: Vec<String>, param: String },
}

/// Reads a choice of several functions, each with its type and its name. `path` is the path of its fields.
pub(super) fn allowed_choice(
    kind: &str,
    mode: ToolChoiceMode,
    tools: Vec<(String, String)>,
    path: &str,
) -> Result<Choice, AppError> {
    check("tool_choice.type", kind == "allowed_tools", "must be `function` or `allowed_tools`")?;
    check(&format!("{path}.mode"), mode != ToolChoiceMode::None, "must be `auto` or `required`")?;
    let param = format!("{path}.tools");
    check(&param, !tools.is_empty(), "must not be an empty list")?;
    for (index, (kind, _)) in tools.iter().enumerate() {
        check_kind(&format!("{param}[{index}].type"), kind)?;
    }
    let names = tools.into_iter().map(|(_, name)| name).collect();
    Ok(Choice::Allowed { mode, names, param })
}

/// Validates functions; `path` is the path of each.
pub(super) fn offer(
    functions: Vec<FunctionDefinition>,
    choice: Choice,
    parallel: Option<bool>,
    path: impl Fn(usize) -> String,
) -> Result<Option<ToolOffer>, AppError> {
    check("tools", functions.len() <= TOOLS_MAX, format!("must be at most {TOOLS_MAX}"))?;
    let mut bytes = 0;
    for (index, function) in functions.iter().enumerate() {
        let path = path(index);
        let name = &function.name;
        let message = format!("must be 1 to {NAME_BYTES_MAX} letters, digits, `_`, `-` or `.`");
        check(&format!("{path}.name"), is_function_name(name), message)?;
        let is_new = functions[..index].iter().all(|other| other.name != *name);
        check(&format!("{path}.name"), is_new, "is the name of an earlier tool, too")?;
        let size = described(function).to_string().len();
        check(&path, size <= TOOL_BYTES_MAX, format!("must have at most {TOOL_BYTES_MAX} bytes"))?;
        bytes += size;
    }
    check("tools", bytes <= ALL_BYTES_MAX, format!("must have at most {ALL_BYTES_MAX} bytes together"))?;
    let all: Vec<String> = functions.iter().map(|function| function.name.clone()).collect();
    let (choice, param, callable) = match choice {
        Choice::Mode(ToolChoiceMode::None) => return Ok(None),
        Choice::Mode(mode) => (choice_of(mode), "tool_choice".to_owned(), all.clone()),
        Choice::Function { name, param } => (ToolChoice::Function, param.to_owned(), vec![name]),
        Choice::Allowed { mode, names, param } => (choice_of(mode), param, names),
    };
    if functions.is_empty() {
        check("tool_choice", choice == ToolChoice::Auto && callable.is_empty(), "needs `tools`")?;
        return Ok(None);
    }
    if let Some(unknown) = callable.iter().find(|name| !all.contains(name)) {
        return Err(AppError::field(&param, format!("has `{unknown}`, which is not the name of a tool")));
    }
    Ok(Some(ToolOffer { functions, callable, choice, is_parallel: parallel.unwrap_or(true) }))
}

fn is_function_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn choice_of(mode: ToolChoiceMode) -> ToolChoice {
    if mode == ToolChoiceMode::Required { ToolChoice::Required } else { ToolChoice::Auto }
}

pub(super) fn check_kind(param: &str, kind: &str) -> Result<(), AppError> {
    check(param, kind == "function", "must be `function`: this server has no other tools")
}

/// A function as templates read it.
fn described(function: &FunctionDefinition) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), function.name.clone().into());
    fields.extend(function.description.clone().map(|text| ("description".to_owned(), text.into())));
    fields.extend(function.parameters.clone().map(|schema| ("parameters".to_owned(), schema.into())));
    json!({"type": "function", "function": fields})
}

/// A call in a message as templates read it. `arguments` is the field of the arguments.
pub(super) fn called(call: &ToolCall, arguments: &str) -> Result<Value, AppError> {
    let text = call.function.arguments.trim();
    let read: Result<Map<String, Value>, _> =
        if text.is_empty() { Ok(Map::new()) } else { serde_json::from_str(text) };
    let read = read.map_err(|_| AppError::field(arguments, "must be the text of a JSON object"))?;
    Ok(
        json!({"type": "function", "id": call.id, "function": {"name": call.function.name, "arguments": read}}),
    )
}

impl ToolOffer {
    /// Adds the functions to a conversation.
    pub(super) fn add_to(&self, conversation: &mut Conversation) {
        conversation.tools = self.functions.iter().map(described).collect();
    }

    /// Returns whether every answer has to be a call.
    pub(super) fn is_forced(&self) -> bool {
        self.choice != ToolChoice::Auto
    }

    /// The schemas of the arguments of all functions that the model may call, if it has to call one.
    pub(super) fn forced_arguments(&self) -> Option<Vec<Value>> {
        self.is_forced().then(|| self.offered().map(|function| schema(function).1).collect())
    }

    /// The functions that the model may call.
    fn offered(&self) -> impl Iterator<Item = &FunctionDefinition> {
        self.functions.iter().filter(|function| self.callable.contains(&function.name))
    }

    /// Makes the model's calls parts of the answer, and their grammar the guide if the request needs calls.
    pub(super) fn apply(
        &self,
        request: &mut GenerationRequest,
        number: Option<&NumberFormat>,
        profile: &ModelProfile,
    ) -> Result<(), AppError> {
        let is_forced = self.is_forced();
        let dialect = match &profile.tools {
            ToolSupport::Off => {
                let message = "are switched off for this model (--tool-parser none)";
                return Err(AppError::field("tools", message));
            }
            _ if number.is_some() && !is_forced => return Ok(()),
            // The template teaches calls that this server cannot read: they are text.
            ToolSupport::Unknown => {
                let message = "must be `auto` or `none`: this server does not know how the model of this chat \
                               template writes calls; see --tool-parser";
                return check("tool_choice", !is_forced, message);
            }
            ToolSupport::Known(dialect) => dialect,
        };
        let Request::Text(job) = &mut request.decoding else {
            return Err(AppError::field("tools", "are not allowed with `use_beam_search`"));
        };
        if job.shown_ids.is_empty() {
            job.shown_ids = Arc::clone(dialect.special_ids());
        }
        let calls_max = if self.is_parallel { usize::MAX } else { 1 };
        let is_strict = self.offered().any(|function| function.strict == Some(true));
        let answer = match (&self.choice, request.guided.take()) {
            (ToolChoice::Auto, None) if is_strict => Some(Answer::Text),
            (ToolChoice::Auto, Some(Guided { constraint: Constraint::Json { schema, whitespace }, .. })) => {
                Some(Answer::Json { schema, whitespace })
            }
            // Every answer is a call, so that no text has the format. Some clients send both.
            (_, Some(Guided { constraint: Constraint::Json { .. }, .. })) => None,
            (_, Some(Guided { param, .. })) => {
                return Err(AppError::field(
                    param,
                    "is not allowed with these `tools` and this `tool_choice`",
                ));
            }
            (_, None) => None,
        };
        let guidance = match &answer {
            _ if is_forced => Guidance::Everything,
            Some(_) => Guidance::Calls,
            None => Guidance::Nothing,
        };
        if guidance != Guidance::Nothing {
            // The grammar of a request for one function has one call, as OpenAI's API does.
            let is_single = !self.is_parallel || self.choice == ToolChoice::Function;
            request.guided = Some(Guided {
                param: "tools",
                constraint: Constraint::Calls(Box::new(CallGrammar {
                    layout: dialect.layout().clone(),
                    functions: self.offered().map(schema).collect(),
                    calls_max: if is_single { 1 } else { CALLS_MAX },
                    answer,
                })),
            });
        }
        request.calls = Some(CallParsing {
            dialect: dialect.clone(),
            functions: self.callable.iter().cloned().collect(),
            calls_max,
            guidance,
        });
        Ok(())
    }
}

/// The name of a function and the schema of its arguments.
fn schema(function: &FunctionDefinition) -> (String, Value) {
    let schema = match &function.parameters {
        Some(schema) if !schema.is_empty() => Value::Object(schema.clone()),
        _ => json!({"type": "object", "properties": {}, "additionalProperties": false}),
    };
    (function.name.clone(), schema)
}

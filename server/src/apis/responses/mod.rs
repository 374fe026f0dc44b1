//! The responses API: `POST /v1/responses`, stateless.
//!
//! In: messages, calls of functions and their results for the chat template. Out: items of an output, or the
//! events of a stream. Nothing is stored: a client sends the whole conversation each time.

mod answers;
mod input;

use ntl_api::{
    CompletionRequest, NamedSchema, ResponseFormat, ResponsesFormat, ResponsesRequest, ResponsesSettings,
    ResponsesText, ResponsesToolChoice, ToolChoiceMode,
};
use ntl_text::chat::Conversation;
use serde_json::Value;

pub(crate) use answers::ResponseAnswers;

use super::chat::{TOP_LOGPROBS_MAX, effort_variable, message_request};
use super::fields::{self, FieldNames};
use super::number::NumberFormat;
use super::tools::{Choice, ToolOffer, allowed_choice, check_kind, offer};
use crate::error::{AppError, check, in_range};
use crate::json::from_value;
use crate::request::{GenerationRequest, ModelProfile};

/// Adds the log-probabilities of tokens.
const LOGPROBS: &str = "message.output_text.logprobs";

/// The names in `include`.
const INCLUDES: [&str; 8] = [
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
];

const METADATA_MAX: usize = 16;
const METADATA_BYTES_MAX: usize = 512;

const NAMES: FieldNames = FieldNames {
    max_tokens: "max_output_tokens",
    logprobs: "top_logprobs",
    alternatives: "top_logprobs",
    response_format: "text.format",
};

/// Validates the fields that need no model.
pub(crate) fn check_fields(request: &ResponsesRequest) -> Result<(), AppError> {
    fields::check_responses(&request.others)?;
    let metadata = request.metadata.iter().flatten();
    let fits = metadata.clone().count() <= METADATA_MAX
        && metadata.clone().all(|(name, value)| name.len().max(value.len()) <= METADATA_BYTES_MAX);
    let message = format!("must be at most {METADATA_MAX} texts of at most {METADATA_BYTES_MAX} bytes");
    check("metadata", fits, message)?;
    let mut includes = request.include.iter().flatten();
    let names = INCLUDES.join(", ");
    check("include", includes.all(|name| INCLUDES.contains(&name.as_str())), format!("must list {names}"))?;
    in_range("top_logprobs", request.top_logprobs, 0, 0..=TOP_LOGPROBS_MAX)?;
    let verbosity = request.text.as_ref().and_then(|text| text.verbosity.as_deref());
    check("text.verbosity", matches!(verbosity, None | Some("medium")), "is not supported by this version")
}

/// Reads the tools of a request; `None` if the model is to call none.
pub(crate) fn tool_offer(request: &ResponsesRequest) -> Result<Option<ToolOffer>, AppError> {
    let tools = request.tools.clone().unwrap_or_default();
    for (index, tool) in tools.iter().enumerate() {
        check_kind(&format!("tools[{index}].type"), &tool.kind)?;
        if let Some(name) = tool.others.keys().next() {
            return Err(AppError::field(&format!("tools[{index}].{name}"), "is not a field of a function"));
        }
    }
    let choice = match &request.tool_choice {
        None => Choice::Mode(ToolChoiceMode::Auto),
        Some(ResponsesToolChoice::Mode(mode)) => Choice::Mode(*mode),
        Some(ResponsesToolChoice::Function(named)) => {
            check_kind("tool_choice.type", &named.kind)?;
            Choice::Function { name: named.name.clone(), param: "tool_choice.name" }
        }
        Some(ResponsesToolChoice::Allowed(allowed)) => {
            let tools = allowed.tools.iter().map(|tool| (tool.kind.clone(), tool.name.clone())).collect();
            allowed_choice(&allowed.kind, allowed.mode, tools, "tool_choice")?
        }
    };
    let functions = tools.into_iter().map(ntl_api::ResponsesTool::into_function).collect();
    offer(functions, choice, request.parallel_tool_calls, |index| format!("tools[{index}]"))
}

/// Takes the conversation of a request. Rejects unsupported content with an error that names the field.
pub(crate) fn conversation(
    request: &mut ResponsesRequest,
    tools: Option<&ToolOffer>,
    profile: &ModelProfile,
) -> Result<Conversation, AppError> {
    let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let mut variables = effort_variable("reasoning.effort", effort)?;
    variables.extend(request.chat_template_kwargs.take().unwrap_or_default());
    let mut conversation = Conversation {
        messages: input::messages(request.instructions.as_deref(), request.input.take())?,
        tools: Vec::new(),
        documents: Vec::new(),
        add_generation_prompt: profile.writes_tokens(),
        continue_final_message: false,
        variables,
    };
    if let Some(tools) = tools {
        tools.add_to(&mut conversation);
    }
    Ok(conversation)
}

/// Validates a request whose conversation became the token ids `prompt`, as for chats.
pub(crate) fn generation_request(
    request: &ResponsesRequest,
    prompt: Vec<u32>,
    tools: Option<&ToolOffer>,
    room: Option<usize>,
    profile: &ModelProfile,
) -> Result<(GenerationRequest, Option<NumberFormat>), AppError> {
    let max = profile.output_tokens_max;
    let fits = request.max_output_tokens.is_none_or(|asked| (1..=max).contains(&asked));
    check("max_output_tokens", fits, format!("must be from 1 to {max}"))?;
    let others = request.others.iter().filter(|(name, _)| fields::RESPONSES_SHARED.contains(&name.as_str()));
    let others = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    let shared = CompletionRequest {
        max_tokens: request.max_output_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        seed: request.seed,
        logprobs: alternatives(request),
        stream: request.stream,
        response_format: response_format(request.text.as_ref()),
        number: request.number.clone(),
        ..from_value(Value::Object(others))?
    };
    message_request(shared, NAMES, prompt, tools, room, profile)
}

/// Number of alternatives to each token; `None` if the response has no log-probabilities.
fn alternatives(request: &ResponsesRequest) -> Option<i64> {
    let count = request.top_logprobs.unwrap_or(0);
    let is_included = request.include.iter().flatten().any(|name| name == LOGPROBS);
    (is_included || count > 0).then_some(count.cast_signed())
}

/// The format under the name of chats and completions.
fn response_format(text: Option<&ResponsesText>) -> Option<ResponseFormat> {
    Some(match text?.format.clone()? {
        ResponsesFormat::Text {} => ResponseFormat::Text {},
        ResponsesFormat::JsonObject {} => ResponseFormat::JsonObject {},
        ResponsesFormat::JsonSchema { name, description, schema, strict } => ResponseFormat::JsonSchema {
            json_schema: NamedSchema { name, description, strict, schema: Value::Object(schema) },
        },
    })
}

/// The fields that the response repeats.
pub(crate) fn settings(request: &ResponsesRequest) -> ResponsesSettings {
    let text = request.text.clone().unwrap_or_default();
    ResponsesSettings {
        instructions: request.instructions.clone(),
        max_output_tokens: request.max_output_tokens,
        metadata: request.metadata.clone().unwrap_or_default(),
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        previous_response_id: None,
        reasoning: request.reasoning.clone().unwrap_or_default(),
        store: false,
        temperature: request.temperature.unwrap_or(1.0),
        text: ResponsesText { format: Some(text.format.unwrap_or(ResponsesFormat::Text {})), ..text },
        tool_choice: request.tool_choice.clone().unwrap_or(ResponsesToolChoice::Mode(ToolChoiceMode::Auto)),
        tools: request.tools.clone().unwrap_or_default(),
        top_logprobs: request.top_logprobs.unwrap_or(0),
        top_p: request.top_p.unwrap_or(1.0),
        truncation: "disabled".to_owned(),
    }
}

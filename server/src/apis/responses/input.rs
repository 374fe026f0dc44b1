//! The input of a response as messages of a conversation.

use ntl_api::{FunctionCall, ResponsesContent, ResponsesInput, ResponsesInputItem, ToolCall};
use ntl_text::chat::ChatMessage;

use super::super::fields;
use super::super::tools::called;
use crate::error::{AppError, check, required};

const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];
const PARTS: [&str; 3] = ["input_text", "output_text", "text"];

/// Joins the parts of a message.
const PART_SEPARATOR: &str = "\n";

/// Returns the messages. Calls that follow each other, or the message of the assistant, are calls of one
/// message.
pub(super) fn messages(
    instructions: Option<&str>,
    input: Option<ResponsesInput>,
) -> Result<Vec<ChatMessage>, AppError> {
    let mut messages: Vec<ChatMessage> =
        instructions.map(|text| ChatMessage::new("system", text)).into_iter().collect();
    let items = match input {
        None => return Err(AppError::field("input", "is missing")),
        Some(ResponsesInput::Text(text)) => {
            messages.push(ChatMessage::new("user", text));
            return Ok(messages);
        }
        Some(ResponsesInput::Items(items)) => items,
    };
    check("input", !items.is_empty(), "must not be an empty list")?;
    for (index, item) in items.into_iter().enumerate() {
        let path = format!("input[{index}].");
        fields::check_response_item(&path, &item.others)?;
        match item.kind.as_deref().unwrap_or("message") {
            "message" => messages.push(message(&path, item)?),
            "function_call" => {
                let call = call(&path, item)?;
                match messages.last_mut() {
                    Some(message) if message.role == "assistant" => message.tool_calls.push(call),
                    _ => messages.push(ChatMessage {
                        role: "assistant".to_owned(),
                        tool_calls: vec![call],
                        ..ChatMessage::default()
                    }),
                }
            }
            "function_call_output" => messages.push(output(&path, item)?),
            kind => {
                let kinds = "`message`, `function_call` or `function_call_output`";
                let message = format!("is `{kind}`: this server reads {kinds}");
                return Err(AppError::field(&format!("{path}type"), message));
            }
        }
    }
    Ok(messages)
}

fn message(path: &str, item: ResponsesInputItem) -> Result<ChatMessage, AppError> {
    let role = item.role.unwrap_or_default();
    let roles = ROLES.join(", ");
    check(&format!("{path}role"), ROLES.contains(&role.as_str()), format!("must be one of {roles}"))?;
    let content = required(&format!("{path}content"), item.content)?;
    Ok(ChatMessage::new(&role, text(&format!("{path}content"), content)?))
}

fn call(path: &str, item: ResponsesInputItem) -> Result<serde_json::Value, AppError> {
    let arguments = required(&format!("{path}arguments"), item.arguments)?;
    let function = FunctionCall { name: required(&format!("{path}name"), item.name)?, arguments };
    let id = required(&format!("{path}call_id"), item.call_id)?;
    let call = ToolCall { id, kind: "function".to_owned(), function };
    called(&call, &format!("{path}arguments"))
}

fn output(path: &str, item: ResponsesInputItem) -> Result<ChatMessage, AppError> {
    let id = required(&format!("{path}call_id"), item.call_id)?;
    let output = text(&format!("{path}output"), required(&format!("{path}output"), item.output)?)?;
    Ok(ChatMessage { tool_call_id: Some(id), ..ChatMessage::new("tool", output) })
}

fn text(path: &str, content: ResponsesContent) -> Result<String, AppError> {
    let parts = match content {
        ResponsesContent::Text(text) => return Ok(text),
        ResponsesContent::Parts(parts) => parts,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        let message = format!("is `{}`: this server reads texts only", part.kind);
        check(&format!("{path}.type"), PARTS.contains(&part.kind.as_str()), message)?;
        fields::check_response_part(&format!("{path}."), &part.others)?;
        texts.push(part.text.ok_or_else(|| AppError::field(&path, "has no `text`"))?);
    }
    Ok(texts.join(PART_SEPARATOR))
}

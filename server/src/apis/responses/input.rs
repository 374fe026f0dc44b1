//! The input of a response as messages of a conversation.

use ntl_api::{FunctionCall, ResponsesContent, ResponsesInput, ResponsesInputItem, ResponsesPart, ToolCall};
use ntl_text::chat::ChatMessage;

use super::super::fields;
use super::super::tools::called;
use crate::error::{AppError, check};

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
        instructions.map(|text| said("system", text.to_owned())).into_iter().collect();
    let items = match input {
        None => return Err(AppError::field("input", "is missing")),
        Some(ResponsesInput::Text(text)) => {
            messages.push(said("user", text));
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

fn said(role: &str, content: String) -> ChatMessage {
    ChatMessage { role: role.to_owned(), content: Some(content), ..ChatMessage::default() }
}

fn message(path: &str, item: ResponsesInputItem) -> Result<ChatMessage, AppError> {
    let role = item.role.unwrap_or_default();
    let roles = ROLES.join(", ");
    check(&format!("{path}role"), ROLES.contains(&role.as_str()), format!("must be one of {roles}"))?;
    let content = item.content.ok_or_else(|| AppError::field(&format!("{path}content"), "is missing"))?;
    Ok(said(&role, text(&format!("{path}content"), content)?))
}

fn call(path: &str, item: ResponsesInputItem) -> Result<serde_json::Value, AppError> {
    let needed = |name: &str, value: Option<String>| {
        value.ok_or_else(|| AppError::field(&format!("{path}{name}"), "is missing"))
    };
    let arguments = needed("arguments", item.arguments)?;
    let function = FunctionCall { name: needed("name", item.name)?, arguments };
    let call = ToolCall { id: needed("call_id", item.call_id)?, kind: "function".to_owned(), function };
    called(&call, &format!("{path}arguments"))
}

fn output(path: &str, item: ResponsesInputItem) -> Result<ChatMessage, AppError> {
    let field = |name: &str| format!("{path}{name}");
    let id = item.call_id.ok_or_else(|| AppError::field(&field("call_id"), "is missing"))?;
    let output = item.output.ok_or_else(|| AppError::field(&field("output"), "is missing"))?;
    Ok(ChatMessage { tool_call_id: Some(id), ..said("tool", text(&field("output"), output)?) })
}

fn text(path: &str, content: ResponsesContent) -> Result<String, AppError> {
    let parts = match content {
        ResponsesContent::Text(text) => return Ok(text),
        ResponsesContent::Parts(parts) => parts,
    };
    let text = |(index, part): (usize, ResponsesPart)| {
        let at = format!("{path}[{index}]");
        let message = format!("is `{}`: this server reads texts only", part.kind);
        check(&format!("{at}.type"), PARTS.contains(&part.kind.as_str()), message)?;
        fields::check_response_part(&format!("{at}."), &part.others)?;
        part.text.ok_or_else(|| AppError::field(&at, "has no `text`"))
    };
    let texts: Vec<String> = parts.into_iter().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join(PART_SEPARATOR))
}

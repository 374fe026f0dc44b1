//! The guided fields, which constrain the text. A request may have one of them.

use ntl_api::{CompletionRequest, ResponseFormat};
use ntl_models::guide::Constraint;
use serde_json::{Value, json};

use crate::error::{AppError, check};
use crate::request::Guided;

/// Maximum size of a constraint in bytes, checked before anything is copied. The compiler has its own limits.
const BYTES_MAX: usize = 64 << 10;

const CHOICES_MAX: usize = 1024;

pub(super) fn guided(request: &CompletionRequest) -> Result<Option<Guided>, AppError> {
    let mut found = Vec::new();
    if let Some(regex) = request.guided_regex.as_ref().filter(|regex| !regex.is_empty()) {
        check_size("guided_regex", regex.len())?;
        found.push(Guided { param: "guided_regex", constraint: Constraint::Regex(regex.clone()) });
    }
    if let Some(choices) = request.guided_choice.as_ref().filter(|choices| !choices.is_empty()) {
        let fits = choices.len() <= CHOICES_MAX && !choices.iter().any(String::is_empty);
        check("guided_choice", fits, format!("must be at most {CHOICES_MAX} texts, none of them empty"))?;
        check_size("guided_choice", choices.iter().map(String::len).sum())?;
        found.push(Guided { param: "guided_choice", constraint: Constraint::Choice(choices.clone()) });
    }
    if let Some(schema) = request.guided_json.as_ref().filter(|schema| !is_empty(schema)) {
        found.push(json_constraint("guided_json", schema)?);
    }
    match &request.response_format {
        None | Some(ResponseFormat::Text {}) => {}
        Some(ResponseFormat::JsonObject {}) => {
            found.push(json_constraint("response_format", &json!({"type": "object"}))?);
        }
        Some(ResponseFormat::JsonSchema { json_schema }) => {
            found.push(json_constraint("response_format", &json_schema.schema)?);
        }
    }
    match found.get(1) {
        Some(second) => {
            Err(AppError::field(second.param, "is not allowed with another constraint on the text"))
        }
        None => Ok(found.pop()),
    }
}

/// Clients send empty strings and objects to mean none.
fn is_empty(schema: &Value) -> bool {
    schema.as_str().is_some_and(str::is_empty) || schema.as_object().is_some_and(serde_json::Map::is_empty)
}

fn json_constraint(param: &'static str, schema: &Value) -> Result<Guided, AppError> {
    let parsed = match schema {
        Value::String(text) => serde_json::from_str(text).ok(),
        other => Some(other.clone()),
    };
    let schema = parsed.filter(|schema| schema.is_object() || schema.is_boolean());
    let message = "must be a JSON schema: an object, or the text of one";
    let schema = schema.ok_or_else(|| AppError::field(param, message))?;
    check_size(param, schema.to_string().len())?;
    Ok(Guided { param, constraint: Constraint::Json(schema) })
}

fn check_size(param: &str, bytes: usize) -> Result<(), AppError> {
    check(param, bytes <= BYTES_MAX, format!("must have at most {BYTES_MAX} bytes"))
}

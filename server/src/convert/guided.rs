//! What a text must be: the guided fields of a request, of which one at most may be given.

use ntl_api::{CompletionRequest, ResponseFormat};
use ntl_models::guide::Constraint;
use serde_json::{Value, json};

use super::check;
use crate::error::AppError;

/// Bytes of a constraint. Compiling has limits of its own; this one comes before anything is copied.
const BYTES_MAX: usize = 64 << 10;

const CHOICES_MAX: usize = 1024;

/// A constraint and the field that holds it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Guided {
    /// For errors.
    pub(crate) param: &'static str,
    /// What the text must be.
    pub(crate) constraint: Constraint,
}

/// The constraint of a request, if it has one.
pub(super) fn guided(request: &CompletionRequest) -> Result<Option<Guided>, AppError> {
    let mut all = Vec::new();
    if let Some(regex) = request.guided_regex.as_ref().filter(|regex| !regex.is_empty()) {
        short("guided_regex", regex.len())?;
        all.push(Guided { param: "guided_regex", constraint: Constraint::Regex(regex.clone()) });
    }
    if let Some(choices) = request.guided_choice.as_ref().filter(|choices| !choices.is_empty()) {
        let fits = choices.len() <= CHOICES_MAX && !choices.iter().any(String::is_empty);
        check("guided_choice", fits, format!("must be at most {CHOICES_MAX} texts, none of them empty"))?;
        short("guided_choice", choices.iter().map(String::len).sum())?;
        all.push(Guided { param: "guided_choice", constraint: Constraint::Choice(choices.clone()) });
    }
    if let Some(schema) = request.guided_json.as_ref().filter(|schema| !asks_nothing(schema)) {
        all.push(json_of("guided_json", schema)?);
    }
    match &request.response_format {
        None | Some(ResponseFormat::Text) => {}
        Some(ResponseFormat::JsonObject) => {
            all.push(json_of("response_format", &json!({"type": "object"}))?);
        }
        Some(ResponseFormat::JsonSchema { json_schema }) => {
            all.push(json_of("response_format", &json_schema.schema)?);
        }
    }
    let second = all.get(1).map_or("", |guided| guided.param);
    check(second, all.len() < 2, "does not go with another constraint on the text")?;
    Ok(all.pop())
}

/// Clients send empty strings and objects for "none".
fn asks_nothing(schema: &Value) -> bool {
    schema.as_str().is_some_and(str::is_empty) || schema.as_object().is_some_and(serde_json::Map::is_empty)
}

fn json_of(param: &'static str, schema: &Value) -> Result<Guided, AppError> {
    let parsed = match schema {
        Value::String(text) => serde_json::from_str(text).ok(),
        other => Some(other.clone()),
    };
    let schema = parsed.filter(|schema| schema.is_object() || schema.is_boolean());
    check(param, schema.is_some(), "must be a JSON schema: an object, or the text of one")?;
    let schema = schema.unwrap_or_default();
    short(param, schema.to_string().len())?;
    Ok(Guided { param, constraint: Constraint::Json(schema) })
}

fn short(param: &str, bytes: usize) -> Result<(), AppError> {
    check(param, bytes <= BYTES_MAX, format!("must have at most {BYTES_MAX} bytes"))
}

//! The fields that constrain the text. A request may have one constraint.

use ntl_api::{CompletionRequest, ResponseFormat, StructuredOutputs};
use ntl_text::guide::{Constraint, StructuralFormat, Whitespace, forbid_additional_properties};
use serde_json::{Value, json};

use crate::error::{AppError, check};
use crate::request::Guided;

/// Maximum size of a constraint in bytes, checked before anything is copied. The compiler has its own limits.
const BYTES_MAX: usize = 64 << 10;

const PATTERN_BYTES_MAX: usize = 256;

const CHOICES_MAX: usize = 1024;

/// Returns the constraint of a request. `format`: its field for the format of the text.
pub(super) fn guided(request: &CompletionRequest, format: &'static str) -> Result<Option<Guided>, AppError> {
    let (whitespace_param, whitespace) = whitespace(request)?;
    let fields = request.structured_outputs.as_ref();
    let mut constraints = structured(fields, &whitespace)?;
    constraints.extend(older_names(request, &whitespace)?);
    match &request.response_format {
        None | Some(ResponseFormat::Text {}) => {}
        Some(ResponseFormat::JsonObject {}) => constraints.push(json_object(format, &whitespace)),
        Some(ResponseFormat::JsonSchema { json_schema }) => {
            constraints.push(json_constraint(format, &json_schema.schema, &whitespace)?);
        }
        Some(ResponseFormat::StructuralTag { format: tags, structures, triggers }) => {
            let tag = json!({"format": tags, "structures": structures, "triggers": triggers});
            constraints.push(structural_constraint(format, &tag)?);
        }
    }
    if let Some(second) = constraints.get(1) {
        return Err(AppError::field(second.param, "is not allowed with another constraint on the text"));
    }
    let mut guided = constraints.pop();
    let is_closed = fields.is_some_and(|fields| fields.disable_additional_properties == Some(true));
    match guided.as_mut().map(|guided| &mut guided.constraint) {
        Some(Constraint::Json { schema, .. }) if is_closed => forbid_additional_properties(schema),
        Some(Constraint::Json { .. }) => {}
        _ => {
            let message = "is only allowed with JSON";
            check(whitespace_param, whitespace == Whitespace::default(), message)?;
            check("structured_outputs.disable_additional_properties", !is_closed, message)?;
        }
    }
    Ok(guided)
}

/// Returns whether a request has a JSON schema.
pub(super) fn has_schema(request: &CompletionRequest) -> bool {
    let is_of_schema = matches!(request.response_format, Some(ResponseFormat::JsonSchema { .. }));
    let is_structured = request.structured_outputs.as_ref().is_some_and(|fields| fields.json.is_some());
    is_of_schema || is_structured || request.guided_json.is_some()
}

/// The constraints of `structured_outputs`.
fn structured(fields: Option<&StructuredOutputs>, whitespace: &Whitespace) -> Result<Vec<Guided>, AppError> {
    let mut constraints = Vec::new();
    let Some(fields) = fields else { return Ok(constraints) };
    if let Some(schema) = &fields.json {
        constraints.push(json_constraint("structured_outputs.json", schema, whitespace)?);
    }
    if let Some(regex) = &fields.regex {
        constraints.push(regex_constraint("structured_outputs.regex", regex)?);
    }
    if let Some(choices) = &fields.choice {
        let param = "structured_outputs.choice";
        check(param, !choices.is_empty(), "must not be an empty list")?;
        constraints.push(choice_constraint(param, choices)?);
    }
    if let Some(grammar) = &fields.grammar {
        constraints.push(grammar_constraint("structured_outputs.grammar", grammar)?);
    }
    if let Some(tag) = &fields.structural_tag {
        constraints.push(structural_constraint("structured_outputs.structural_tag", tag)?);
    }
    if fields.json_object == Some(true) {
        constraints.push(json_object("structured_outputs.json_object", whitespace));
    }
    Ok(constraints)
}

/// The constraints of the `guided_*` fields. Clients send empty strings, lists and objects to mean none.
fn older_names(request: &CompletionRequest, whitespace: &Whitespace) -> Result<Vec<Guided>, AppError> {
    let mut constraints = Vec::new();
    if let Some(regex) = &request.guided_regex
        && !regex.is_empty()
    {
        constraints.push(regex_constraint("guided_regex", regex)?);
    }
    if let Some(choices) = &request.guided_choice
        && !choices.is_empty()
    {
        constraints.push(choice_constraint("guided_choice", choices)?);
    }
    if let Some(schema) = &request.guided_json
        && !is_empty(schema)
    {
        constraints.push(json_constraint("guided_json", schema, whitespace)?);
    }
    if let Some(grammar) = &request.guided_grammar
        && !grammar.is_empty()
    {
        constraints.push(grammar_constraint("guided_grammar", grammar)?);
    }
    Ok(constraints)
}

fn is_empty(schema: &Value) -> bool {
    match schema {
        Value::String(text) => text.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The whitespace of JSON, and the field that sets it.
fn whitespace(request: &CompletionRequest) -> Result<(&'static str, Whitespace), AppError> {
    let param = "structured_outputs.whitespace_pattern";
    let fields = request.structured_outputs.as_ref();
    let pattern = fields.and_then(|fields| fields.whitespace_pattern.as_ref());
    let is_disabled = fields.is_some_and(|fields| fields.disable_any_whitespace == Some(true));
    let disabled_param = "structured_outputs.disable_any_whitespace";
    match pattern {
        Some(pattern) => {
            let fits = pattern.len() <= PATTERN_BYTES_MAX;
            check(param, fits, format!("must have at most {PATTERN_BYTES_MAX} bytes"))?;
            check(disabled_param, !is_disabled, format!("is not allowed with `{param}`"))?;
            Ok((param, Whitespace::Pattern(pattern.clone())))
        }
        None if is_disabled => Ok((disabled_param, Whitespace::None)),
        None => Ok((param, Whitespace::default())),
    }
}

fn regex_constraint(param: &'static str, regex: &str) -> Result<Guided, AppError> {
    check_size(param, regex.len())?;
    Ok(Guided { param, constraint: Constraint::Regex(regex.to_owned()) })
}

fn choice_constraint(param: &'static str, choices: &[String]) -> Result<Guided, AppError> {
    let fits = choices.len() <= CHOICES_MAX && !choices.iter().any(String::is_empty);
    check(param, fits, format!("must be at most {CHOICES_MAX} texts, none of them empty"))?;
    check_size(param, choices.iter().map(String::len).sum())?;
    Ok(Guided { param, constraint: Constraint::Choice(choices.to_vec()) })
}

fn grammar_constraint(param: &'static str, grammar: &str) -> Result<Guided, AppError> {
    check_size(param, grammar.len())?;
    Ok(Guided { param, constraint: Constraint::Grammar(grammar.to_owned()) })
}

fn structural_constraint(param: &'static str, tag: &Value) -> Result<Guided, AppError> {
    let tag = parsed(tag)
        .filter(Value::is_object)
        .ok_or_else(|| AppError::field(param, "must be a JSON object, or the text of one"))?;
    check_size(param, tag.to_string().len())?;
    let format = StructuralFormat::read(&tag)
        .map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))?;
    Ok(Guided { param, constraint: Constraint::Structural(Box::new(format)) })
}

fn json_object(param: &'static str, whitespace: &Whitespace) -> Guided {
    let schema = json!({"type": "object"});
    Guided { param, constraint: Constraint::Json { schema, whitespace: whitespace.clone() } }
}

fn json_constraint(param: &'static str, schema: &Value, whitespace: &Whitespace) -> Result<Guided, AppError> {
    let schema = parsed(schema).filter(|schema| schema.is_object() || schema.is_boolean());
    let message = "must be a JSON schema: an object, or the text of one";
    let schema = schema.ok_or_else(|| AppError::field(param, message))?;
    check_size(param, schema.to_string().len())?;
    Ok(Guided { param, constraint: Constraint::Json { schema, whitespace: whitespace.clone() } })
}

/// A value, or the value that a text of JSON is.
fn parsed(value: &Value) -> Option<Value> {
    match value {
        Value::String(text) => serde_json::from_str(text).ok(),
        other => Some(other.clone()),
    }
}

fn check_size(param: &str, bytes: usize) -> Result<(), AppError> {
    check(param, bytes <= BYTES_MAX, format!("must have at most {BYTES_MAX} bytes"))
}

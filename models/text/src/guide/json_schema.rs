//! JSON schemas: which of their keywords constrain a text, and the whitespace between the tokens of JSON.

use std::collections::HashSet;

use llguidance::derivre::RegexBuilder;
use ntl_core::guide::GuideError;
use serde_json::{Value, json};

use super::failed;

/// Maximum number of fields in all objects of a JSON schema. With thousands of fields, the library needs
/// seconds before it reaches its own limits.
const FIELDS_MAX: usize = 2000;

/// One space or two, or a new line with its indentation. Without a bound, some models write whitespace until
/// the text is cut.
const BOUNDED: &str = r" {1,2}|\n[ \t]{0,16}";

/// All whitespace of JSON.
const JSON_WHITESPACE: &str = r"[ \t\r\n]*";

/// Limit of the check that a pattern matches only whitespace. Larger patterns count as others.
const PATTERN_COST_MAX: u64 = 10_000;

/// The library's options, which it reads from the schema itself.
const OPTIONS: &str = "x-guidance";

/// Published keywords that the library does not implement. It ignores some of them, depending on `$schema`.
const UNSUPPORTED: [&str; 20] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    OPTIONS,
];

/// Keywords whose value is a schema or a list of schemas.
const OF_SCHEMAS: [&str; 7] =
    ["additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems"];

/// Keywords whose value is an object of schemas.
const OF_NAMED_SCHEMAS: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];

/// Whitespace between the tokens of JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Whitespace {
    /// At most two spaces, or one line break with at most 16 characters of indentation.
    #[default]
    Bounded,
    None,
    /// Once between two tokens, if it matches this regular expression.
    Pattern(String),
}

/// Rejects schemas that are not schemas, too large, or beyond the library.
pub(super) fn check(schema: &Value) -> Result<(), GuideError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(failed("a JSON schema is an object or a boolean"));
    }
    let count = fields(schema);
    if count > FIELDS_MAX {
        return Err(failed(format!(
            "the schema has {count} fields in all its objects; at most {FIELDS_MAX}"
        )));
    }
    check_keywords(schema)
}

/// Forbids the properties that a schema does not list, in all its objects that do not mention
/// `additionalProperties`.
pub fn forbid_additional_properties(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    for (keyword, value) in fields.iter_mut() {
        match value {
            Value::Object(named) if OF_NAMED_SCHEMAS.contains(&keyword.as_str()) => {
                named.values_mut().for_each(forbid_additional_properties);
            }
            Value::Array(list) if OF_SCHEMAS.contains(&keyword.as_str()) => {
                list.iter_mut().for_each(forbid_additional_properties);
            }
            Value::Object(_) if OF_SCHEMAS.contains(&keyword.as_str()) => forbid_additional_properties(value),
            _ => {}
        }
    }
    let lists = ["properties", "patternProperties"];
    if lists.iter().any(|&keyword| fields.get(keyword).is_some_and(Value::is_object)) {
        fields.entry("additionalProperties").or_insert(Value::Bool(false));
    }
}

/// Number of fields in all objects of a value.
fn fields(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(fields).sum(),
        Value::Object(entries) => entries.len() + entries.values().map(fields).sum::<usize>(),
        _ => 0,
    }
}

/// Rejects keywords that would not constrain the text, in all schemas inside `root`. Names that are not
/// keywords of any published draft are annotations.
fn check_keywords(root: &Value) -> Result<(), GuideError> {
    let mut seen = HashSet::new();
    let mut pending = vec![String::new()];
    while let Some(path) = pending.pop() {
        let Some(schema) = root.pointer(&path).and_then(Value::as_object) else { continue };
        if !seen.insert(path.clone()) {
            continue;
        }
        if let Some(keyword) = UNSUPPORTED.iter().find(|&&keyword| schema.contains_key(keyword)) {
            return Err(failed(format!("the keyword `{keyword}` at `#{path}` is not supported")));
        }
        // The library counts a name that is written twice as two properties.
        let required = schema.get("required").and_then(Value::as_array).map_or(0, Vec::len);
        if schema.get("minProperties").and_then(Value::as_f64).is_some_and(|min| min > required.max(1) as f64)
        {
            let reason = "is not supported above 1 and above the number of `required` names";
            return Err(failed(format!("the keyword `minProperties` at `#{path}` {reason}")));
        }
        // With these, the library reads `items` as older drafts do, which have no `prefixItems`.
        let is_older =
            schema.contains_key("additionalItems") || schema.get("items").is_some_and(Value::is_array);
        if is_older && schema.contains_key("prefixItems") {
            let message =
                "the keyword `prefixItems` is not supported next to `additionalItems` or a list of `items`";
            return Err(failed(message));
        }
        for (keyword, value) in schema {
            let at = format!("{path}/{}", escaped(keyword));
            match value {
                Value::String(target) if keyword == "$ref" => {
                    pending.extend(target.strip_prefix('#').map(str::to_owned))
                }
                Value::Object(named) if OF_NAMED_SCHEMAS.contains(&keyword.as_str()) => {
                    pending.extend(named.keys().map(|name| format!("{at}/{}", escaped(name))));
                }
                Value::Array(list) if OF_SCHEMAS.contains(&keyword.as_str()) => {
                    pending.extend((0..list.len()).map(|index| format!("{at}/{index}")));
                }
                Value::Object(_) if OF_SCHEMAS.contains(&keyword.as_str()) => pending.push(at),
                _ => {}
            }
        }
    }
    Ok(())
}

/// A name as a JSON pointer has it.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Rejects a pattern that matches anything but whitespace: the text would not be JSON.
pub(super) fn check_whitespace(whitespace: &Whitespace) -> Result<(), GuideError> {
    let Whitespace::Pattern(pattern) = whitespace else { return Ok(()) };
    let is_whitespace = RegexBuilder::new().is_contained_in(pattern, JSON_WHITESPACE, PATTERN_COST_MAX);
    if is_whitespace.map_err(failed)? {
        return Ok(());
    }
    Err(failed("the whitespace pattern matches characters other than space, tab and line breaks"))
}

/// The schema with the library's options for whitespace.
pub(super) fn with_whitespace(schema: &Value, whitespace: &Whitespace) -> Value {
    let options = match whitespace {
        Whitespace::Bounded => json!({"whitespace_pattern": BOUNDED}),
        Whitespace::None => json!({"whitespace_flexible": false}),
        Whitespace::Pattern(pattern) => json!({"whitespace_pattern": pattern}),
    };
    let mut schema = if *schema == Value::Bool(true) { json!({}) } else { schema.clone() };
    if let Some(fields) = schema.as_object_mut() {
        fields.insert(OPTIONS.to_owned(), options);
    }
    schema
}

//! JSON schemas: which of their keywords constrain a text, and the whitespace between the tokens of JSON.

use std::collections::HashSet;

use llguidance::derivre::RegexBuilder;
use ntl_core::guide::GuideError;
use serde_json::{Map, Value, json};

use super::number_keywords::{self, ABOUT_NUMBERS, Step, may_be_number};
use super::{failed, references};

/// Maximum number of fields in all objects of a JSON schema. With thousands of fields, the library needs
/// seconds before it reaches its own limits.
const FIELDS_MAX: usize = 2000;

/// Maximum number of patterns of `patternProperties`. The library intersects each two of them.
const PATTERNS_MAX: usize = 50;

/// Maximum sum of the coefficients of `multipleOf`, such as 25 for 0.25. The library needs about 20 µs for
/// each unit.
const STEPS_MAX: u64 = 10_000;

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

/// Returns an equal schema that the library applies exactly.
///
/// # Errors
/// If it is not a schema, too large, or beyond the library.
pub(super) fn prepared(schema: &Value) -> Result<Value, GuideError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(failed("a JSON schema is an object or a boolean"));
    }
    let count = fields(schema);
    if count > FIELDS_MAX {
        return Err(failed(format!(
            "the schema has {count} fields in all its objects; at most {FIELDS_MAX}"
        )));
    }
    let paths = schemas(schema);
    check_keywords(schema, &paths)?;
    let mut schema = schema.clone();
    let copies = references::rewrite(&mut schema, &paths)?;
    for path in &paths {
        if let Some(Value::Object(fields)) = schema.pointer_mut(path) {
            number_keywords::replace_booleans(fields);
        }
    }
    for path in paths.iter().rev() {
        join_numbers(&mut schema, path);
    }
    let mut steps = Steps::default();
    for path in &paths {
        if let Some(Value::Object(fields)) = schema.pointer_mut(path) {
            steps.add(number_keywords::rewrite(fields, path)?, fields);
        }
    }
    steps.check()?;
    copies.add(&mut schema, FIELDS_MAX, fields).ok_or_else(|| {
        failed(format!(
            "the schema has more than {FIELDS_MAX} fields, with copies of what its `$ref`s point to"
        ))
    })?;
    if !paths.iter().any(|path| refers_to_pattern(&schema, path)) {
        // Inner schemas are moved before outer ones, whose paths remain.
        for path in paths.iter().rev() {
            if let Some(Value::Object(fields)) = schema.pointer_mut(path) {
                name_patterns(fields);
            }
        }
    }
    Ok(schema)
}

/// Joins the schemas of numbers in the `allOf` and the `$ref` of a schema.
fn join_numbers(root: &mut Value, path: &str) {
    let Some(Value::Object(schema)) = root.pointer(path) else { return };
    let mut joined = schema.clone();
    let is_alone = schema.keys().all(|keyword| keyword == "$ref" || keyword == "$defs");
    if !is_alone
        && let Some(target) = referred(root, schema)
        && number_keywords::join(&mut joined, &target)
    {
        joined.shift_remove("$ref");
    }
    if let Some(Value::Array(parts)) = joined.get("allOf").cloned() {
        let mut rest = Vec::new();
        for part in parts {
            let schema = part.as_object();
            let target = schema.filter(|schema| schema.len() == 1).and_then(|schema| referred(root, schema));
            let is_joined =
                target.as_ref().or(schema).is_some_and(|schema| number_keywords::join(&mut joined, schema));
            // The places of the others remain.
            rest.push(if is_joined { Value::Bool(true) } else { part });
        }
        joined.insert("allOf".to_owned(), Value::Array(rest));
    }
    if let Some(schema) = root.pointer_mut(path) {
        *schema = Value::Object(joined);
    }
}

/// Returns the schema inside `root` to which a `$ref` points.
fn referred(root: &Value, schema: &Map<String, Value>) -> Option<Map<String, Value>> {
    let target = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    root.pointer(target)?.as_object().cloned()
}

fn refers_to_pattern(root: &Value, path: &str) -> bool {
    let target = root.pointer(path).and_then(|schema| schema.get("$ref"));
    target.and_then(Value::as_str).is_some_and(|target| target.contains("/patternProperties/"))
}

/// Makes properties of the patterns that match only one name, because the library would admit that name
/// twice.
fn name_patterns(schema: &mut Map<String, Value>) {
    if schema.contains_key("minProperties") || schema.contains_key("maxProperties") {
        // The library supports neither with properties that are not required.
        return;
    }
    let Some(Value::Object(patterns)) = schema.shift_remove("patternProperties") else { return };
    let mut others = Map::new();
    for (pattern, value) in patterns {
        let name = pattern.strip_prefix('^').and_then(|pattern| pattern.strip_suffix('$'));
        let properties = schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        match (name, properties) {
            (Some(name), Value::Object(properties)) if is_plain(name) && !properties.contains_key(name) => {
                properties.insert(name.to_owned(), value);
            }
            _ => {
                others.insert(pattern, value);
            }
        }
    }
    if !others.is_empty() {
        schema.insert("patternProperties".to_owned(), Value::Object(others));
    }
}

/// Returns whether a pattern matches only itself.
fn is_plain(pattern: &str) -> bool {
    pattern.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

/// The `multipleOf`s of a schema, and what multiplies their cost.
#[derive(Debug, Default)]
struct Steps {
    all: Vec<Step>,
    /// Number of schemas that do not exclude numbers.
    numbers: usize,
    /// Whether schemas with different `multipleOf` may apply to the same number.
    are_joined: bool,
}

impl Steps {
    fn add(&mut self, step: Option<Step>, schema: &Map<String, Value>) {
        self.all.extend(step);
        self.numbers += usize::from(may_be_number(schema));
        let mut parts = 0;
        for (keyword, value) in schema {
            parts += match (keyword.as_str(), value) {
                // The library makes one automaton of the numbers of all alternatives.
                ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => all.len(),
                ("$ref", _) => 1,
                _ => 0,
            };
        }
        let of_schemas = OF_SCHEMAS.iter().chain(&["properties", "patternProperties"]);
        let others = of_schemas.filter(|&&keyword| !["allOf", "anyOf", "oneOf"].contains(&keyword));
        let others = others.chain(&ABOUT_NUMBERS).filter(|keyword| schema.contains_key(**keyword)).count();
        let has_patterns = schema.contains_key("properties") && schema.contains_key("patternProperties");
        self.are_joined |= parts > 1 || (parts > 0 && others > 0) || has_patterns;
    }

    /// Rejects steps whose automata would be too large.
    fn check(&self) -> Result<(), GuideError> {
        let sum: u64 = self.all.iter().map(|step| u64::from(step.coefficient)).sum();
        let cost = if self.are_joined {
            // Any of them may have to hold together, in any number.
            let common = Step::common(&self.all).map(|step| u64::from(step.coefficient));
            common.map_or(u64::MAX, |common| common.saturating_mul(self.numbers as u64))
        } else {
            sum
        };
        if self.all.is_empty() || cost.max(sum) <= STEPS_MAX {
            return Ok(());
        }
        Err(failed(format!(
            "the numbers in `multipleOf`, without their points, add up to more than {STEPS_MAX} (schemas that apply \
             together count with their common multiple)"
        )))
    }
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

/// Returns a schema whose objects have only the properties that it lists. A schema remains unchanged if such
/// an object may be impossible: two parts of the schema describe one object, or an object needs a property
/// that is not listed.
pub(super) fn closed(schema: &Value) -> Value {
    let mut closed = schema.clone();
    for path in schemas(schema) {
        let Some(fields) = schema.pointer(&path).and_then(Value::as_object) else { continue };
        if joins_objects(fields) || needs_unlisted(fields) {
            return closed;
        }
    }
    forbid_additional_properties(&mut closed);
    closed
}

/// Returns whether two parts of a schema may list properties of the same object.
fn joins_objects(schema: &Map<String, Value>) -> bool {
    let mut parts =
        usize::from(["properties", "patternProperties"].iter().any(|&name| schema.contains_key(name)));
    for (keyword, value) in schema {
        parts += match (keyword.as_str(), value) {
            ("allOf", Value::Array(all)) => all.len(),
            ("$ref" | "anyOf" | "oneOf", _) => 1,
            _ => 0,
        };
    }
    parts > 1
}

/// Returns whether an object with only the listed properties may have too few.
fn needs_unlisted(schema: &Map<String, Value>) -> bool {
    if schema.contains_key("minProperties") {
        return true;
    }
    let listed = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten() {
        if !listed.zip(name.as_str()).is_some_and(|(listed, name)| listed.contains_key(name)) {
            return true;
        }
    }
    false
}

/// Number of fields in all objects of a value.
fn fields(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(fields).sum(),
        Value::Object(entries) => entries.len() + entries.values().map(fields).sum::<usize>(),
        _ => 0,
    }
}

/// Rejects keywords that would not constrain the text, in the schemas at `paths`. Names that are not keywords
/// of any published draft are annotations.
fn check_keywords(root: &Value, paths: &[String]) -> Result<(), GuideError> {
    let mut patterns = 0;
    for path in paths {
        let Some(schema) = root.pointer(path).and_then(Value::as_object) else { continue };
        patterns += schema.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
        if patterns > PATTERNS_MAX {
            let reason = format!("makes the patterns of the schema more than {PATTERNS_MAX}");
            return Err(failed(format!("the keyword `patternProperties` at `#{path}` {reason}")));
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
    }
    Ok(())
}

/// JSON pointers to all schemas inside `root`, also to those that only a `$ref` reaches.
fn schemas(root: &Value) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut paths = Vec::new();
    let mut pending = vec![String::new()];
    while let Some(path) = pending.pop() {
        let Some(schema) = root.pointer(&path).and_then(Value::as_object) else { continue };
        if !seen.insert(path.clone()) {
            continue;
        }
        for (keyword, value) in schema {
            let at = format!("{path}/{}", escaped(keyword));
            match value {
                Value::String(target) if keyword == "$ref" => pending.extend(references::pointer(target)),
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
        paths.push(path);
    }
    paths
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

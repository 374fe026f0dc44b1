//! The schemas that apply to the places of a JSON text.
//!
//! A place has alternatives (`anyOf`, `oneOf`), and each of them is a list of schemas that apply together
//! (`allOf`, `$ref`). The alternatives may be more than those that the text so far allows: the guide decides
//! what the text may be, and a place only says which values to expect.

use std::fmt;
use std::sync::Arc;

use ntl_core::guide::FieldValues;
use ntl_core::numbers::{ListedValues, SchemaNumbers, TokenBytes};
use serde_json::{Map, Value};

use super::super::json_schema::escaped;
use super::listed::listed_values;
use super::numbers::{begins_number, numbers};

/// Maximum number of alternatives of a place; further ones are ignored. Only numbers of ignored alternatives
/// are then written without a distribution.
const ALTERNATIVES_MAX: usize = 64;

/// Maximum number of values of a place that lists them, and of bytes of their JSON.
const VALUES_MAX: usize = 255;
const VALUE_BYTES_MAX: usize = 4096;

/// A JSON schema whose parts are found by JSON pointers.
#[derive(Clone)]
pub(in crate::guide) struct Schema {
    schema: Arc<Value>,
    /// The tokens that listed values are written with. Without them, listed values are not fields.
    tokens: Option<Arc<TokenBytes>>,
}

/// The alternatives of a place: JSON pointers to schemas that apply together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::guide) struct Place(Vec<Vec<String>>);

impl fmt::Debug for Schema {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Schema").field(&self.schema).finish()
    }
}

impl Schema {
    pub(in crate::guide) fn new(schema: &Value) -> Self {
        Self { schema: Arc::new(schema.clone()), tokens: None }
    }

    /// The same, with the places whose values are listed as fields.
    pub(in crate::guide) fn with_listed(self, tokens: &Arc<TokenBytes>) -> Self {
        Self { tokens: Some(Arc::clone(tokens)), ..self }
    }

    /// The values of a field at a place, if a value may begin with `byte`.
    pub(super) fn field_values(&self, place: &Place, byte: u8) -> Option<FieldValues> {
        if begins_number(byte) {
            return self.numbers(place).map(|numbers| FieldValues::Numbers(Arc::new(numbers)));
        }
        let tokens = Arc::clone(self.tokens.as_ref()?);
        Some(FieldValues::Listed(Arc::new(ListedValues::new(self.listed(place)?, tokens))))
    }

    /// The whole text.
    pub(super) fn root(&self) -> Place {
        self.place(vec![vec![String::new()]])
    }

    /// A value in an object.
    pub(super) fn property(&self, object: &Place, name: &str) -> Place {
        self.below(object, |pointer, schema| {
            let properties = schema.get("properties").and_then(Value::as_object);
            if properties.is_some_and(|properties| properties.contains_key(name)) {
                return vec![format!("{pointer}/properties/{}", escaped(name))];
            }
            // The guide allows only the numbers of the pattern that the name matches.
            let patterns = schema.get("patternProperties").and_then(Value::as_object);
            let patterns = patterns.into_iter().flat_map(Map::keys);
            let others =
                schema.get("additionalProperties").map(|_| format!("{pointer}/additionalProperties"));
            patterns
                .map(|name| format!("{pointer}/patternProperties/{}", escaped(name)))
                .chain(others)
                .collect()
        })
    }

    /// A value in a list.
    pub(super) fn item(&self, list: &Place, index: usize) -> Place {
        self.below(list, |pointer, schema| {
            for keyword in ["prefixItems", "items"] {
                if schema.get(keyword).and_then(Value::as_array).is_some_and(|first| index < first.len()) {
                    return vec![format!("{pointer}/{keyword}/{index}")];
                }
            }
            let rest =
                if schema.get("items").is_some_and(Value::is_array) { "additionalItems" } else { "items" };
            schema.get(rest).map(|_| format!("{pointer}/{rest}")).into_iter().collect()
        })
    }

    /// The numbers that a place names.
    pub(super) fn numbers(&self, place: &Place) -> Option<SchemaNumbers> {
        let mut sets = Vec::new();
        for pointers in &place.0 {
            let schemas: Vec<&Map<String, Value>> =
                pointers.iter().filter_map(|pointer| self.object(pointer)).collect();
            sets.extend(numbers(&schemas));
        }
        SchemaNumbers::new(sets)
    }

    /// The JSON of the values that a place lists, unless some of them are numbers, objects or lists.
    fn listed(&self, place: &Place) -> Option<Vec<String>> {
        if place.0.len() >= ALTERNATIVES_MAX {
            return None;
        }
        let mut texts = Vec::new();
        for pointers in &place.0 {
            let schemas: Vec<&Map<String, Value>> =
                pointers.iter().filter_map(|pointer| self.object(pointer)).collect();
            for value in listed_values(&schemas)? {
                if value.is_number() || value.is_object() || value.is_array() {
                    return None;
                }
                let text = value.to_string();
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
        }
        let bytes: usize = texts.iter().map(String::len).sum();
        ((2..=VALUES_MAX).contains(&texts.len()) && bytes <= VALUE_BYTES_MAX).then_some(texts)
    }

    /// Returns whether any schema inside names numbers.
    pub(in crate::guide) fn names_numbers(&self) -> bool {
        any_schema(&self.schema, &|schema| numbers(&[schema]).is_some())
    }

    /// Returns whether any schema inside lists values.
    pub(in crate::guide) fn lists_values(&self) -> bool {
        any_schema(&self.schema, &|schema| {
            let mut values = count_listed(schema);
            for union in ["anyOf", "oneOf"] {
                for alternative in schema.get(union).and_then(Value::as_array).into_iter().flatten() {
                    values += alternative.as_object().map_or(0, count_listed);
                }
            }
            values >= 2
        })
    }

    fn object(&self, pointer: &str) -> Option<&Map<String, Value>> {
        self.schema.pointer(pointer)?.as_object()
    }

    /// The place below another one. `options` are the pointers that one schema has for it, one of which
    /// applies.
    fn below(&self, place: &Place, options: impl Fn(&str, &Map<String, Value>) -> Vec<String>) -> Place {
        let mut alternatives = Vec::new();
        for pointers in &place.0 {
            let mut combined = vec![Vec::new()];
            for pointer in pointers {
                let Some(schema) = self.object(pointer) else { continue };
                let options = options(pointer, schema);
                if !options.is_empty() {
                    combined = with_each(&combined, &options);
                }
            }
            alternatives.extend(combined.into_iter().filter(|pointers| !pointers.is_empty()));
        }
        self.place(alternatives)
    }

    /// Follows references, and divides alternatives.
    fn place(&self, alternatives: Vec<Vec<String>>) -> Place {
        let mut pending: Vec<Alternative> =
            alternatives.into_iter().rev().map(|open| Alternative { open, closed: Vec::new() }).collect();
        let mut done = Vec::new();
        while let Some(Alternative { mut open, mut closed }) = pending.pop() {
            if done.len() >= ALTERNATIVES_MAX {
                break;
            }
            let Some(pointer) = open.pop() else {
                done.push(closed);
                continue;
            };
            if closed.contains(&pointer) {
                pending.push(Alternative { open, closed });
                continue;
            }
            let mut choices = vec![open];
            if let Some(schema) = self.object(&pointer) {
                let target =
                    schema.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
                let all = target.map(str::to_owned).into_iter().chain(items(schema, &pointer, "allOf"));
                let all: Vec<String> = all.collect();
                choices.iter_mut().for_each(|open| open.extend(all.iter().cloned()));
                for keyword in ["anyOf", "oneOf"] {
                    let options: Vec<String> = items(schema, &pointer, keyword).collect();
                    if !options.is_empty() {
                        choices = with_each(&choices, &options);
                    }
                }
            }
            closed.push(pointer);
            let choices = choices.into_iter().take(ALTERNATIVES_MAX).rev();
            pending.extend(choices.map(|open| Alternative { open, closed: closed.clone() }));
        }
        Place(done)
    }
}

/// Returns whether any object in `value`, which may be a schema, has a property.
fn any_schema(value: &Value, has: &dyn Fn(&Map<String, Value>) -> bool) -> bool {
    match value {
        Value::Object(schema) => has(schema) || schema.values().any(|inner| any_schema(inner, has)),
        Value::Array(items) => items.iter().any(|inner| any_schema(inner, has)),
        _ => false,
    }
}

/// An alternative while it is divided.
struct Alternative {
    open: Vec<String>,
    closed: Vec<String>,
}

/// Pointers to the schemas in a list.
fn items(schema: &Map<String, Value>, pointer: &str, keyword: &str) -> impl Iterator<Item = String> {
    let count = schema.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
    let list = format!("{pointer}/{keyword}");
    (0..count).map(move |index| format!("{list}/{index}"))
}

/// Each alternative with each option, up to [`ALTERNATIVES_MAX`].
fn with_each(alternatives: &[Vec<String>], options: &[String]) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for alternative in alternatives {
        for option in options {
            if all.len() == ALTERNATIVES_MAX {
                return all;
            }
            all.push([alternative.as_slice(), std::slice::from_ref(option)].concat());
        }
    }
    all
}

fn count_listed(schema: &Map<String, Value>) -> usize {
    listed_values(&[schema]).map_or(0, |values| values.len())
}

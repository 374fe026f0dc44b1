//! The `$ref`s of a JSON schema, in a form that the library follows.
//!
//! The library follows pointers without escapes. In: a schema, and pointers to all schemas inside it. Out: an
//! equal schema without anchors and escapes in its `$ref`s.

use std::collections::BTreeMap;

use ntl_core::guide::GuideError;
use serde_json::{Map, Value};

use super::failed;

/// Schemas whose pointers have escapes, and the names of their copies in `$defs`.
#[derive(Debug, Default)]
pub(super) struct Copies(BTreeMap<String, String>);

/// Returns the pointer of a `$ref` into its own schema; `None` for other ones and for anchors.
pub(super) fn pointer(reference: &str) -> Option<String> {
    let pointer = percent_decoded(reference.strip_prefix('#')?)?;
    (pointer.is_empty() || pointer.starts_with('/')).then_some(pointer)
}

/// Rewrites the `$ref`s of the schemas at `paths`. Some point to copies that do not exist yet.
///
/// # Errors
/// If one of them points to nothing.
pub(super) fn rewrite(root: &mut Value, paths: &[String]) -> Result<Copies, GuideError> {
    let mut anchors = BTreeMap::new();
    for path in paths {
        if let Some(Value::String(name)) = root.pointer(path).and_then(|schema| schema.get("$anchor")) {
            anchors.entry(name.clone()).or_insert(path);
        }
    }
    let mut copies = Copies::default();
    for path in paths {
        let Some(Value::String(reference)) = root.pointer(path).and_then(|schema| schema.get("$ref")) else {
            continue;
        };
        // The library reads the second one like the first.
        if !reference.starts_with('#') || reference == "#" || reference == "#/" {
            continue;
        }
        let target = pointer(reference).or_else(|| {
            let name = percent_decoded(&reference[1..])?;
            anchors.get(&name).copied().cloned()
        });
        let Some(target) = target.filter(|target| root.pointer(target).is_some()) else {
            return Err(failed(format!("the keyword `$ref` at `#{path}` points to nothing: `{reference}`")));
        };
        let plain = if target.contains('~') {
            let name = copies.name(target, root);
            format!("#/$defs/{name}")
        } else {
            format!("#{target}")
        };
        if let Some(Value::Object(schema)) = root.pointer_mut(path) {
            schema.insert("$ref".to_owned(), Value::from(plain));
        }
    }
    Ok(copies)
}

impl Copies {
    fn name(&mut self, target: String, root: &Value) -> String {
        let count = self.0.len();
        let mut name = format!("copy-{count}");
        while root.get("$defs").is_some_and(|schemas| schemas.get(&name).is_some()) {
            name.push('_');
        }
        self.0.entry(target).or_insert(name).clone()
    }

    /// Adds the copies to the schema, or returns `None` if they have more than `fields_max` fields.
    pub(super) fn add(self, root: &mut Value, fields_max: usize, fields: fn(&Value) -> usize) -> Option<()> {
        let mut count = fields(root);
        let mut copies = Map::new();
        for (pointer, name) in self.0 {
            let target = root.pointer(&pointer)?;
            count += fields(target) + 1;
            if count > fields_max {
                return None;
            }
            copies.insert(name, target.clone());
        }
        if !copies.is_empty() {
            let named = root.as_object_mut()?.entry("$defs").or_insert_with(|| Value::Object(Map::new()));
            named.as_object_mut()?.extend(copies);
        }
        Some(())
    }
}

/// Replaces `%` and two hexadecimal digits by a byte. Returns `None` if the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

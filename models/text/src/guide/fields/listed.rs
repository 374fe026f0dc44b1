//! The values that schemas list together.

use serde_json::{Map, Value};

/// Returns the values that all of `schemas` admit, or `None` unless they list them by `const`, `enum` or the
/// types `boolean` and `null`. Other keywords may exclude some of them.
pub(super) fn listed_values(schemas: &[&Map<String, Value>]) -> Option<Vec<Value>> {
    let mut listed: Option<Vec<Value>> = None;
    for schema in schemas {
        let values = match (schema.get("const"), schema.get("enum")) {
            (Some(only), _) => std::slice::from_ref(only),
            (None, Some(Value::Array(values))) => values.as_slice(),
            _ => continue,
        };
        match &mut listed {
            Some(listed) => listed.retain(|value| values.contains(value)),
            None => listed = Some(values.to_vec()),
        }
    }
    if listed.is_none() && schemas.iter().filter_map(|schema| schema.get("type")).any(is_small) {
        listed = Some(vec![true.into(), false.into(), Value::Null]);
    }
    let mut listed = listed?;
    for types in schemas.iter().filter_map(|schema| schema.get("type")) {
        listed.retain(|value| names(types).any(|name| has_type(value, name)));
    }
    Some(listed)
}

/// Returns whether the value of the keyword `type` names types with few values only.
fn is_small(types: &Value) -> bool {
    names(types).all(|name| ["boolean", "null"].contains(&name)) && names(types).next().is_some()
}

/// The names in the value of the keyword `type`.
fn names(types: &Value) -> impl Iterator<Item = &str> {
    let names = match types {
        Value::Array(names) => names.as_slice(),
        only => std::slice::from_ref(only),
    };
    names.iter().filter_map(Value::as_str)
}

fn has_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(_) => ["number", "integer"].contains(&name),
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_list_the_values_that_all_of_them_admit() {
        for (schemas, want) in [
            (json!([{"enum": ["a", "b"]}]), Some(json!(["a", "b"]))),
            (json!([{"type": "string", "enum": ["a", null, 1]}]), Some(json!(["a"]))),
            (json!([{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]), Some(json!(["b"]))),
            (json!([{"const": "a"}, {"type": "string"}]), Some(json!(["a"]))),
            (json!([{"type": "boolean"}]), Some(json!([true, false]))),
            (json!([{"type": ["null", "boolean"]}]), Some(json!([true, false, null]))),
            (json!([{"type": ["null", "boolean"]}, {"type": ["null", "string"]}]), Some(json!([null]))),
            (json!([{"type": ["null", "string"]}]), None),
            (json!([{"type": []}]), None),
            (json!([{"minLength": 1}]), None),
            (json!([{}]), None),
            (json!([]), None),
        ] {
            let given: Vec<&Map<String, Value>> =
                schemas.as_array().unwrap().iter().map(|schema| schema.as_object().unwrap()).collect();
            assert_eq!(listed_values(&given).map(Value::Array), want, "{schemas}");
        }
    }
}

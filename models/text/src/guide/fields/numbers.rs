//! The numbers that schemas admit together.

use ntl_core::numbers::{Decimal, Multiples, NumberBound, NumberSet};
use serde_json::{Map, Value};

use super::super::number_keywords::{ABOUT_NUMBERS, just_above};

pub(super) fn begins_number(byte: u8) -> bool {
    byte == b'-' || byte.is_ascii_digit()
}

/// Returns the numbers that all of `schemas` admit, or `None` if they admit none or do not mention numbers.
pub(super) fn numbers(schemas: &[&Map<String, Value>]) -> Option<NumberSet> {
    let mut is_named = false;
    let mut is_integer = false;
    for schema in schemas {
        is_named |= ABOUT_NUMBERS.iter().any(|keyword| schema.contains_key(*keyword));
        if let Some(types) = schema.get("type") {
            let has_number = has_type(types, "number");
            if !has_number && !has_type(types, "integer") {
                return None;
            }
            is_named = true;
            is_integer |= !has_number;
        }
    }
    let low = bound(schemas, "minimum", "exclusiveMinimum", 1.0);
    let high = bound(schemas, "maximum", "exclusiveMaximum", -1.0);
    let steps = schemas.iter().filter_map(|schema| decimal(schema.get("multipleOf")?));
    let steps: Vec<Decimal> = steps.chain(is_integer.then(|| decimal(&Value::from(1))).flatten()).collect();
    let multiples = if steps.is_empty() { None } else { Some(Multiples::common(&steps)?) };
    let bounded = NumberSet::Bounded { low, high, multiples };
    let mut listed: Option<Vec<Decimal>> = None;
    for schema in schemas {
        let values = match (schema.get("const"), schema.get("enum")) {
            (Some(only), _) => std::slice::from_ref(only),
            (None, Some(Value::Array(values))) => values.as_slice(),
            _ => continue,
        };
        let mut numbers: Vec<Decimal> = values.iter().filter_map(decimal).collect();
        numbers.retain(|number| listed.as_ref().is_none_or(|listed| listed.contains(number)));
        listed = Some(numbers);
    }
    let Some(mut listed) = listed else { return is_named.then_some(bounded) };
    listed.retain(|number| bounded.contains(*number));
    (!listed.is_empty()).then_some(NumberSet::Listed(listed))
}

/// Returns whether the value of the keyword `type` names a type.
fn has_type(types: &Value, name: &str) -> bool {
    match types {
        Value::String(only) => only == name,
        Value::Array(names) => names.iter().any(|other| other == name),
        _ => false,
    }
}

/// The strictest bound. An inclusive one may only stand for an exclusive one. `sign`: 1 for a lower bound,
/// and -1 for an upper one.
fn bound(
    schemas: &[&Map<String, Value>],
    inclusive: &str,
    exclusive: &str,
    sign: f64,
) -> Option<NumberBound> {
    let mut strictest: Option<(f64, NumberBound)> = None;
    for schema in schemas {
        for (keyword, is_exclusive) in [(exclusive, true), (inclusive, false)] {
            let Some(bound) = schema.get(keyword).and_then(Value::as_f64) else { continue };
            let least = if is_exclusive { just_above(bound * sign) } else { bound * sign };
            if strictest.is_some_and(|(other, _)| other >= least) {
                continue;
            }
            let value = Decimal::shortest_f64(bound)?.canonical();
            strictest = Some((least, NumberBound { value, is_exclusive }));
        }
    }
    strictest.map(|(_, bound)| bound)
}

fn decimal(value: &Value) -> Option<Decimal> {
    Decimal::shortest_f64(value.as_f64()?).map(Decimal::canonical)
}

#[cfg(test)]
mod tests {
    use ntl_core::numbers::SchemaNumbers;
    use serde_json::json;

    use super::*;

    /// The nearest admitted numbers to 0.3, 7.7 and 1000.
    fn nearest(schemas: &Value) -> Option<Vec<String>> {
        let schemas: Vec<&Map<String, Value>> =
            schemas.as_array().unwrap().iter().map(|schema| schema.as_object().unwrap()).collect();
        let numbers = SchemaNumbers::new(vec![numbers(&schemas)?]).unwrap();
        Some([0.3, 7.7, 1000.0].iter().map(|&value| numbers.nearest(value, 6).unwrap().text).collect())
    }

    #[test]
    fn schemas_admit_the_numbers_that_all_of_them_admit() {
        for (schemas, want) in [
            (json!([{"type": "number"}]), Some(["0.3", "7.7", "1000"])),
            (json!([{"type": "integer"}]), Some(["0", "8", "1000"])),
            (json!([{"type": ["null", "integer"]}]), Some(["0", "8", "1000"])),
            (json!([{"type": ["integer", "number"]}]), Some(["0.3", "7.7", "1000"])),
            (json!([{"type": "number"}, {"type": "integer", "minimum": 2}]), Some(["2", "8", "1000"])),
            (json!([{"minimum": 1, "maximum": 5}]), Some(["1", "5", "5"])),
            (
                json!([{"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 5}]),
                Some(["2", "4", "4"]),
            ),
            (json!([{"type": "integer", "minimum": 1}, {"exclusiveMinimum": 1}]), Some(["2", "8", "1000"])),
            (
                json!([{"exclusiveMinimum": 3, "minimum": 3.0000000000000004}]),
                Some(["3.000001", "7.7", "1000"]),
            ),
            (
                json!([{"type": "number", "multipleOf": 0.5}, {"multipleOf": 0.75}]),
                Some(["0", "7.5", "1000.5"]),
            ),
            (json!([{"type": "number", "maximum": 900}, {"maximum": 800.5}]), Some(["0.3", "7.7", "800.5"])),
            (json!([{"enum": [1, "x", 2.50, 100.0]}]), Some(["1", "2.5", "100"])),
            (json!([{"enum": [1, 5, 9], "type": "integer", "minimum": 2}]), Some(["5", "9", "9"])),
            (json!([{"const": 4}]), Some(["4", "4", "4"])),
            (json!([{"enum": [1, 2]}, {"enum": [2, 3]}]), Some(["2", "2", "2"])),
            (json!([{"enum": [1, 2]}, {"enum": [1.0, 3]}, {"const": 1}]), Some(["1", "1", "1"])),
            (json!([{"enum": ["x", null]}]), None),
            (json!([{"type": "string"}]), None),
            (json!([{"type": "string", "minimum": 1}]), None),
            (json!([{}]), None),
            (json!([]), None),
        ] {
            let want = want.map(|want| want.map(str::to_owned).to_vec());
            assert_eq!(nearest(&schemas), want, "{schemas}");
        }
    }
}

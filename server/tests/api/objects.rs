//! Every object inside a request is read from a JSON object only, never from a list of its fields.
//!
//! In: the objects that `/openapi.json` describes, so that a new one is tested here.

use serde_json::{Value, json};

use crate::chat::chatting;
use crate::support::{get, post, says};

/// An object inside a request.
struct Place {
    /// Its field, as errors name it.
    param: String,
    /// Body of a request with `"here"` in its place.
    body: Value,
    /// Whether the field has no other form.
    is_only_form: bool,
    fields: Vec<Field>,
}

#[derive(Clone)]
struct Field {
    is_required: bool,
    sample: Value,
}

struct Description(Value);

impl Description {
    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => self.resolved(self.0.pointer(reference.trim_start_matches('#')).unwrap()),
            None => schema,
        }
    }

    /// The alternatives of a schema other than null.
    fn alternatives<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolved(schema);
        let mut alternatives = match schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array()) {
            Some(all) => all.iter().flat_map(|one| self.alternatives(one)).collect(),
            None => vec![schema],
        };
        alternatives.retain(|one| one["type"] != "null");
        alternatives
    }

    /// A short value of a schema.
    fn sample(&self, schema: &Value) -> Value {
        let schema = self.alternatives(schema)[0];
        let types = &schema["type"];
        let is =
            |name: &str| *types == name || types.as_array().is_some_and(|all| all.contains(&json!(name)));
        if let Some(first) = schema["enum"].as_array().and_then(|all| all.first()) {
            first.clone()
        } else if is("object") {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let field = |name: &Value| {
                let name = name.as_str().unwrap();
                (name.to_owned(), self.sample(&schema["properties"][name]))
            };
            required.iter().map(field).collect::<serde_json::Map<_, _>>().into()
        } else if is("array") {
            json!([])
        } else if is("string") {
            let pattern = schema["pattern"].as_str().unwrap_or("x").trim_start_matches(['^', '(']);
            json!(pattern.split(['|', ')', '$', '[']).next().unwrap())
        } else if is("boolean") {
            json!(true)
        } else {
            json!(1)
        }
    }

    /// Adds the objects inside `schema`. `wrap` returns the body of a request with a value in its place.
    fn add(
        &self,
        schema: &Value,
        param: &str,
        wrap: &dyn Fn(Value) -> Value,
        depth: usize,
        places: &mut Vec<Place>,
    ) {
        let alternatives = self.alternatives(schema);
        let is_only_form = alternatives.len() == 1;
        let has_lists = alternatives.iter().any(|one| one["type"] == "array");
        for schema in alternatives {
            if depth > 0 && schema["items"].is_object() {
                self.add(
                    &schema["items"],
                    &format!("{param}[0]"),
                    &|inner| wrap(json!([inner])),
                    depth - 1,
                    places,
                );
            }
            if depth > 0 && schema["additionalProperties"].is_object() {
                let wrap = |inner: Value| wrap(json!({"q": inner}));
                self.add(&schema["additionalProperties"], &format!("{param}.q"), &wrap, depth - 1, places);
            }
            let Some(properties) = schema["properties"].as_object() else { continue };
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let is_required = |name: &String| required.contains(&json!(name));
            if !param.is_empty() && !has_lists {
                let mut fields = Vec::new();
                for (name, schema) in properties {
                    fields.push(Field { is_required: is_required(name), sample: self.sample(schema) });
                }
                places.push(Place {
                    param: param.to_owned(),
                    body: wrap(json!("here")),
                    is_only_form,
                    fields,
                });
            }
            if depth == 0 {
                continue;
            }
            for (name, property) in properties {
                let below = if param.is_empty() { name.clone() } else { format!("{param}.{name}") };
                let others = if param.is_empty() { json!({}) } else { self.sample(schema) };
                let wrap = |inner: Value| {
                    let mut object = others.clone();
                    object[name] = inner;
                    wrap(object)
                };
                self.add(property, &below, &wrap, depth - 1, places);
            }
        }
    }
}

/// Lists that could be read as the fields of an object in some order.
fn lists(fields: &[Field]) -> Vec<Value> {
    const ORDERED_MAX: usize = 4;
    let nulls = vec![Value::Null; fields.len()];
    let mut values = Vec::new();
    for field in fields {
        values.push(if field.is_required { field.sample.clone() } else { Value::Null });
    }
    let mut orders = vec![Vec::new()];
    if fields.len() <= ORDERED_MAX {
        for value in &values {
            let mut longer = Vec::new();
            for order in &orders {
                for at in 0..=order.len() {
                    let mut order: Vec<Value> = order.clone();
                    order.insert(at, value.clone());
                    longer.push(order);
                }
            }
            orders = longer;
        }
    }
    orders.extend([nulls, values]);
    orders.into_iter().map(Value::Array).collect()
}

fn replaced(body: &Value, value: &Value) -> Value {
    match body {
        Value::String(text) if text == "here" => value.clone(),
        Value::Array(items) => items.iter().map(|item| replaced(item, value)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, field)| (name.clone(), replaced(field, value)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

#[tokio::test]
async fn no_object_of_a_request_is_read_from_a_list_of_its_fields() {
    let (app, _) = chatting(says("1"));
    let api = Description(get(&app, "/openapi.json").await.json());
    let mut objects = 0;
    for (path, item) in api.0["paths"].as_object().unwrap() {
        let body = &item["post"]["requestBody"]["content"]["application/json"];
        let wrap = |fields: Value| {
            let mut whole = body["example"].clone();
            whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            whole
        };
        let mut places = Vec::new();
        if body.is_object() {
            api.add(&body["schema"], "", &wrap, 5, &mut places);
        }
        for Place { param, body, is_only_form, fields } in places {
            objects += 1;
            for list in lists(&fields) {
                let answer = post(&app, path, replaced(&body, &list)).await;
                let text = &answer.text;
                assert!([400, 422].contains(&answer.status.as_u16()), "{path} {param}: {list}: {text}");
                let is_named = text.contains(&format!("`{param}`: invalid type: list, expected "));
                // A field with several forms has one message for all of them and the objects inside.
                let at = answer.json()["error"]["param"].as_str().unwrap_or("none").to_owned();
                let is_above = param.starts_with(&at) && (at != param || !is_only_form);
                assert!(is_named || is_above, "{path} {param}: {list}: {text}");
            }
        }
    }
    assert!(objects > 30, "only {objects} objects");
}

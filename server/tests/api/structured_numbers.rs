//! Structured answers with a distribution for every number.

use std::path::Path;

use axum::Router;
use ntl_engine::EngineLimits;
use ntl_models::LoadOptions;
use ntl_models::checkpoint::CheckpointFiles;
use ntl_server::app;
use serde_json::{Value, json};

use crate::support::{post, state_of};

const ROUTES: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];

/// A tiny decoder-only model of random weights, with a chat template.
pub(crate) fn tiny() -> Router {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/tiny/llama-ntl");
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tiny.join(name), folder.path().join(name)).unwrap();
    }
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let model = ntl_models::load(&files, LoadOptions::default()).unwrap();
    app::router(state_of(vec![("tiny", model)], crate::support::settings(), EngineLimits::default()))
}

/// The schema of a price and rooms.
pub(crate) fn schema() -> Value {
    json!({
        "type": "object", "required": ["price", "rooms"], "additionalProperties": false,
        "properties": {
            "price": {"type": "number", "minimum": 0, "maximum": 1000},
            "rooms": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "minItems": 1, "maxItems": 2}
        }
    })
}

/// A request for a price and rooms, with `fields` in addition.
fn request(route: &str, fields: Value) -> Value {
    let mut body = json!({
        "response_format": {"type": "json_schema", "json_schema": {"name": "flat", "schema": schema()}},
        "number": {"digits_max": 3, "decimals_max": 1, "tolerance": 0.01}, "max_tokens": 200, "seed": 7
    });
    match route {
        "/v1/completions" => body["prompt"] = json!("Work out a pear"),
        _ => body["messages"] = json!([{"role": "user", "content": "Work out a pear"}]),
    }
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn text_of(choice: &Value) -> &str {
    choice["text"].as_str().or_else(|| choice["message"]["content"].as_str()).unwrap()
}

#[tokio::test]
async fn a_structured_answer_has_the_distribution_of_every_number() {
    let app = tiny();
    for route in ROUTES {
        let answer =
            post(&app, route, request(route, json!({"n": 2, "return_token_ids": true}))).await.json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 2, "{answer}");
        for choice in choices {
            let written: Value = serde_json::from_str(text_of(choice)).unwrap();
            let numbers = choice["numbers"].as_array().unwrap();
            let paths: Vec<&str> = numbers.iter().map(|number| number["path"].as_str().unwrap()).collect();
            let rooms = written["rooms"].as_array().unwrap().len();
            assert_eq!(paths, ["$.price", "$.rooms[0]", "$.rooms[1]"][..=rooms], "{}", text_of(choice));
            let values = [&written["price"], &written["rooms"][0], &written["rooms"][1]];
            for (number, value) in numbers.iter().zip(values) {
                assert_eq!(number["number"]["value"].as_f64(), value.as_f64(), "{number}");
                assert_eq!(number["number"]["estimate"], "trimmed_mean");
                let [first, end] = [0, 1].map(|end| number["token_range"][end].as_u64().unwrap() as usize);
                let ids = &choice["token_ids"].as_array().unwrap()[first..end];
                let detokenized = post(&app, "/detokenize", json!({"tokens": ids})).await.json();
                let text = detokenized["prompt"].as_str().unwrap().trim().to_owned();
                assert_eq!(text, value.to_string().trim_end_matches(".0"), "{number}");
                let mass = &number["number"]["mass"];
                let mass = ["closed", "invalid", "open"].map(|part| mass[part].as_f64().unwrap());
                assert!((mass.iter().sum::<f64>() - 1.0).abs() < 1e-6 && mass[0] > 0.0, "{number}");
            }
            assert!(choice.get("number").is_none());
        }
    }
}

#[tokio::test]
async fn a_stream_has_the_same_text_and_the_same_numbers() {
    let app = tiny();
    for route in ROUTES {
        let whole = post(&app, route, request(route, json!({}))).await.json();
        let streamed = post(&app, route, request(route, json!({"stream": true}))).await;
        let (mut text, mut numbers) = (String::new(), Vec::new());
        for chunk in streamed.chunks() {
            let choice = &chunk["choices"][0];
            let delta = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
            text += delta.unwrap_or_default();
            for number in choice["numbers"].as_array().into_iter().flatten() {
                let value = number["number"]["value"].to_string();
                assert!(text.ends_with(value.trim_end_matches(".0")), "{text} {value}");
                numbers.push(number.clone());
            }
        }
        assert_eq!(text, text_of(&whole["choices"][0]));
        let without_passes = |numbers: &[Value]| {
            let mut numbers = numbers.to_vec();
            numbers.iter_mut().for_each(|number| number["number"]["forward_passes"] = Value::Null);
            numbers
        };
        let whole = whole["choices"][0]["numbers"].as_array().unwrap().clone();
        assert_eq!(without_passes(&numbers), without_passes(&whole));
    }
}

#[tokio::test]
async fn options_for_single_numbers_are_refused_by_name() {
    let app = tiny();
    for (number, param) in [
        (json!({"scale": [1, 5]}), "number.scale"),
        (json!({"range": [1, 5]}), "number.range"),
        (json!({"after": "#"}), "number.after"),
        (json!({"rationales": 2}), "number.rationales"),
        (json!({"method": "sample"}), "number.method"),
        (json!({"sign": false}), "number.sign"),
        (json!({"terminator": "eos"}), "number.terminator"),
        (json!({"thousands": true}), "number.thousands"),
        (json!({"samples": 9}), "number.samples"),
        (json!({"tolerance": 2}), "number.tolerance"),
        (json!({"interval": 1}), "number.interval"),
    ] {
        for route in ROUTES {
            let answer = post(&app, route, request(route, json!({"number": number}))).await;
            assert_eq!(
                (answer.status.as_u16(), &answer.error()["param"]),
                (400, &json!(param)),
                "{}",
                answer.text
            );
        }
    }
    for (fields, param) in [
        (json!({"response_format": {"type": "json_object"}}), "number"),
        (json!({"response_format": null, "structured_outputs": {"regex": "1"}}), "structured_outputs.regex"),
        (json!({"response_format": null, "guided_json": {"type": "string"}}), "number"),
        (json!({"use_beam_search": true}), "response_format"),
    ] {
        let answer = post(&app, ROUTES[0], request(ROUTES[0], fields)).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.error()["param"]),
            (400, &json!(param)),
            "{}",
            answer.text
        );
    }
}

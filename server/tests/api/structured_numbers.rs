//! Structured answers with a distribution for every number.

use std::path::Path;

use axum::Router;
use ntl_engine::EngineLimits;
use ntl_models::LoadOptions;
use ntl_server::app;
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Value, json};

use crate::support::{post, state_of};

const ROUTES: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];

/// A tiny decoder-only model of random weights, with a chat template.
pub(crate) fn tiny() -> Router {
    tiny_with("{% for message in messages %}{{ message.content }}{% endfor %}")
}

fn tiny_with(template: &str) -> Router {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/tiny/llama-ntl");
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tiny.join(name), folder.path().join(name)).unwrap();
    }
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
async fn every_number_of_a_structured_answer_has_its_own_time() {
    let number = json!({"digits_max": 3, "decimals_max": 1, "time_max": 1e-9});
    let answer = post(&tiny(), ROUTES[0], request(ROUTES[0], json!({"number": number}))).await.json();
    let numbers = answer["choices"][0]["numbers"].as_array().unwrap();
    assert!(numbers.len() > 1, "{answer}");
    for found in numbers {
        assert_eq!(found["number"]["truncated"], json!(true), "{found}");
        assert_eq!(found["number"]["nodes"], json!(1), "{found}");
    }
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
        let whole = whole["choices"][0]["numbers"].as_array().unwrap();
        assert_eq!(comparable(&numbers), comparable(whole));
    }
}

/// The schema of a price with values that it lists.
fn listing() -> Value {
    json!({
        "type": "object", "required": ["kind", "price", "sold", "side"], "additionalProperties": false,
        "properties": {
            "kind": {"enum": ["pear", "peach"]}, "price": {"type": "integer", "minimum": 0, "maximum": 9},
            "sold": {"type": "boolean"}, "side": {"anyOf": [{"const": "left"}, {"type": "null"}]}
        }
    })
}

#[tokio::test]
async fn a_structured_answer_has_the_distribution_of_every_listed_value_in_one_list_with_its_numbers() {
    let app = tiny();
    for route in ROUTES {
        let format = json!({"type": "json_schema", "json_schema": {"name": "flat", "schema": listing()}});
        let body = request(route, json!({"n": 2, "return_token_ids": true, "response_format": format}));
        let answer = post(&app, route, body.clone()).await.json();
        for choice in answer["choices"].as_array().unwrap() {
            let written: Value = serde_json::from_str(text_of(choice)).unwrap();
            let fields = choice["fields"].as_array().unwrap();
            let kinds: Vec<&Value> = fields.iter().map(|field| &field["type"]).collect();
            assert_eq!(kinds, ["choice", "number", "choice", "choice"], "{choice}");
            let mut number = fields[1].clone();
            number.as_object_mut().unwrap().remove("type");
            assert_eq!(choice["numbers"], json!([number]));
            for (index, name, values) in [
                (0, "kind", json!(["pear", "peach"])),
                (2, "sold", json!([true, false])),
                (3, "side", json!(["left", null])),
            ] {
                let field = &fields[index];
                assert_eq!(field["path"], format!("$.{name}"));
                let listed = field["probabilities"].as_array().unwrap();
                assert_eq!(listed.iter().map(|entry| entry["value"].clone()).collect::<Value>(), values);
                let probability = |entry: &Value| entry["probability"].as_f64().unwrap();
                assert!((listed.iter().map(probability).sum::<f64>() - 1.0).abs() < 1e-9, "{field}");
                let best = listed.iter().max_by(|a, b| probability(a).total_cmp(&probability(b))).unwrap();
                assert_eq!(written[name], best["value"], "{field}");
                let mass = ["closed", "invalid", "open"].map(|part| field["mass"][part].as_f64().unwrap());
                assert!((mass.iter().sum::<f64>() - 1.0).abs() < 1e-6 && mass[0] > 0.0, "{field}");
                let [first, end] = [0, 1].map(|end| field["token_range"][end].as_u64().unwrap() as usize);
                let ids = &choice["token_ids"].as_array().unwrap()[first..end];
                let detokenized = post(&app, "/detokenize", json!({"tokens": ids})).await.json();
                assert_eq!(detokenized["prompt"].as_str().unwrap().trim(), written[name].to_string());
            }
        }
        let whole = post(&app, route, with(&body, json!({"n": 1}))).await.json();
        let streamed = post(&app, route, with(&body, json!({"n": 1, "stream": true}))).await;
        let lists = streamed.chunks();
        let lists = lists
            .iter()
            .flat_map(|chunk| chunk["choices"][0]["fields"].as_array().cloned().unwrap_or_default());
        let whole = whole["choices"][0]["fields"].as_array().unwrap();
        assert_eq!(comparable(&lists.collect::<Vec<_>>()), comparable(whole));
    }
    let only_listed = json!({"guided_json": {"enum": ["a", "b"]}, "response_format": null});
    let answer = post(&app, ROUTES[0], request(ROUTES[0], only_listed)).await.json();
    assert_eq!(answer["choices"][0]["numbers"], json!([]));
    assert_eq!(answer["choices"][0]["fields"][0]["path"], "$", "{answer}");
}

#[tokio::test]
async fn a_structured_text_without_numbers_has_an_empty_list_whole_and_at_the_beginning_of_its_stream() {
    let app = tiny();
    for route in ROUTES {
        let body = request(route, json!({"max_tokens": 1}));
        let whole = post(&app, route, body.clone()).await.json();
        assert_eq!(whole["choices"][0]["numbers"], json!([]), "{whole}");
        let streamed = post(&app, route, with(&body, json!({"stream": true}))).await;
        let lists = streamed
            .chunks()
            .iter()
            .filter_map(|chunk| chunk["choices"][0].get("numbers").cloned())
            .collect::<Vec<_>>();
        assert_eq!(lists, [json!([])], "{}", streamed.text);
    }
}

/// The number of numbers in each item of a response and in each part of a message; `None` without a list.
fn lengths(response: &Value) -> Vec<Option<usize>> {
    let mut lengths = Vec::new();
    for item in response["output"].as_array().unwrap() {
        for part in std::iter::once(item).chain(item["content"].as_array().into_iter().flatten()) {
            lengths.push(part.get("numbers").map(|numbers| numbers.as_array().unwrap().len()));
        }
    }
    lengths
}

#[tokio::test]
async fn items_of_a_response_have_the_same_lists_of_numbers_whole_and_streamed() {
    let app = tiny_with(HERMES);
    let options = json!({"digits_max": 3, "decimals_max": 1, "tolerance": 0.01});
    let text = json!({"format": {"type": "json_schema", "name": "flat", "schema": schema()}});
    let tools = json!([{"type": "function", "name": "offer", "parameters": schema()}]);
    let mut empty = 0;
    for more in [json!({ "text": text }), json!({"tools": tools, "tool_choice": "required"})] {
        for tokens in [1, 4, 9, 16, 25, 36, 200] {
            let body = json!({"input": "Work out a pear", "number": options, "max_output_tokens": tokens, "seed": 7});
            let body = with(&body, more.clone());
            let whole = post(&app, "/v1/responses", body.clone()).await.json();
            let streamed = post(&app, "/v1/responses", with(&body, json!({"stream": true}))).await;
            let last = streamed.text.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
            let last: Value = serde_json::from_str(last).unwrap();
            let lengths = [&whole, &last["response"]].map(lengths);
            assert_eq!(lengths[0], lengths[1], "{more} {tokens}: {whole} {last}");
            empty += usize::from(lengths[0].contains(&Some(0)));
        }
    }
    assert!(empty >= 2, "no list was empty");
}

/// Hermes' format in a prompt that the model's short context can hold.
const HERMES: &str = "{% for tool in tools or [] %};{% endfor %}{% for m in messages %}{{ m.content }}\
     {% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}";

#[tokio::test]
async fn the_arguments_of_a_forced_call_have_the_distribution_of_every_number() {
    let app = tiny_with(HERMES);
    let tools = json!([
        {"type": "function", "function": {"name": "offer", "parameters": schema()}},
        {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}}
    ]);
    let offer = json!({"type": "function", "function": {"name": "offer"}});
    let body = json!({
        "messages": [{"role": "user", "content": "Work out a pear"}], "tools": tools, "tool_choice": offer,
        "number": {"digits_max": 3, "decimals_max": 1, "tolerance": 0.01}, "max_tokens": 200, "seed": 7
    });
    let answer = post(&app, ROUTES[1], body.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let choice = &answer.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let written: Value = serde_json::from_str(arguments).unwrap();
    let numbers = choice["numbers"].as_array().unwrap();
    let root = "$.tool_calls[0].function.arguments";
    let places = [("price", &written["price"]), ("rooms[0]", &written["rooms"][0])];
    assert_eq!(numbers.len(), 1 + written["rooms"].as_array().unwrap().len(), "{arguments}");
    for (number, (place, value)) in numbers.iter().zip(places) {
        assert_eq!(number["path"], format!("{root}.{place}"));
        assert_eq!(number["number"]["value"].as_f64(), value.as_f64(), "{number}");
    }

    let streamed = post(&app, ROUTES[1], with(&body, json!({"stream": true}))).await;
    let (mut text, mut found) = (String::new(), Vec::new());
    for chunk in streamed.chunks() {
        let choice = &chunk["choices"][0];
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            text += call["function"]["arguments"].as_str().unwrap();
        }
        found.extend(choice["numbers"].as_array().into_iter().flatten().map(|number| number["path"].clone()));
    }
    let paths: Vec<Value> = numbers.iter().map(|number| number["path"].clone()).collect();
    assert_eq!((text.as_str(), found), (arguments, paths));

    // Without a forced call, the number follows the tools in the prompt.
    let free = post(&app, ROUTES[1], with(&body, json!({"tool_choice": "auto"}))).await.json();
    assert!(free["choices"][0]["number"].is_object() && free["choices"][0]["numbers"].is_null(), "{free}");
    let wait = json!({"type": "function", "function": {"name": "wait"}});
    let none = post(&app, ROUTES[1], with(&body, json!({"tool_choice": wait}))).await;
    assert_eq!((none.status.as_u16(), &none.error()["param"]), (400, &json!("number")), "{}", none.text);
}

#[tokio::test]
async fn calls_of_a_response_have_the_numbers_of_their_own_arguments() {
    let app = tiny_with(HERMES);
    let options = json!({"digits_max": 3, "decimals_max": 1, "tolerance": 0.01});
    let chat = json!({
        "messages": [{"role": "user", "content": "Work out a pear"}], "number": options, "max_tokens": 200, "seed": 7,
        "tools": [{"type": "function", "function": {"name": "offer", "parameters": schema()}}],
        "tool_choice": "required"
    });
    let body = json!({
        "input": "Work out a pear", "number": options, "max_output_tokens": 200, "seed": 7,
        "tools": [{"type": "function", "name": "offer", "parameters": schema()}], "tool_choice": "required"
    });
    let chat = post(&app, ROUTES[1], chat).await.json()["choices"][0].clone();
    let response = post(&app, "/v1/responses", body.clone()).await;
    assert_eq!(response.status, 200, "{}", response.text);
    let output = response.json()["output"].as_array().unwrap().clone();
    let arguments = |item: &Value| item["arguments"].clone();
    let in_chat = chat["message"]["tool_calls"].as_array().unwrap().iter();
    let in_chat: Vec<Value> = in_chat.map(|call| arguments(&call["function"])).collect();
    assert_eq!(output.iter().map(arguments).collect::<Vec<_>>(), in_chat);

    let found = |output: &[Value]| {
        let numbers = |(call, item): (usize, &Value)| {
            let root = format!("$.tool_calls[{call}].function.arguments");
            let in_message = |number: &Value| {
                let path = number["path"].as_str().unwrap().replacen('$', &root, 1);
                with(number, json!({"path": path}))
            };
            item["numbers"].as_array().unwrap().iter().map(in_message).collect::<Vec<_>>()
        };
        comparable(&output.iter().enumerate().flat_map(numbers).collect::<Vec<_>>())
    };
    let in_chat = comparable(chat["numbers"].as_array().unwrap());
    assert!(!in_chat.is_empty());
    assert_eq!(found(&output), in_chat);

    let streamed = post(&app, "/v1/responses", with(&body, json!({"stream": true}))).await;
    let last = streamed.text.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(found(last["response"]["output"].as_array().unwrap()), in_chat);
}

/// The numbers without their passes, which depend on the load.
fn comparable(numbers: &[Value]) -> Vec<Value> {
    let mut numbers = numbers.to_vec();
    for number in &mut numbers {
        if number["number"].is_object() {
            number["number"]["forward_passes"] = Value::Null;
        }
    }
    numbers
}

/// A body with other fields.
fn with(body: &Value, fields: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
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

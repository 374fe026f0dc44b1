//! `/classify`, `/pooling` and the `number` of checkpoints with a head: the tiny ones of
//! `models/tests/data/heads`.

use std::collections::BTreeSet;
use std::path::Path;

use axum::Router;
use ntl_engine::EngineLimits;
use ntl_models::LoadOptions;
use ntl_server::app;
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Value, json};

use crate::docs::names;
use crate::support::{Answer, complete, get, post, says, server, settings, state_of};

pub(crate) fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/heads").join(name)
}

pub(crate) fn head(name: &str) -> Router {
    let files = CheckpointFiles::folder(&folder(name)).unwrap();
    let model = ntl_models::load(&files, LoadOptions::default()).unwrap();
    app::router(state_of(vec![(name, model)], settings(), EngineLimits::default()))
}

/// Texts with what transformers computes for them.
fn cases(name: &str) -> Vec<Value> {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(folder(name).join("golden.json")).unwrap()).unwrap();
    golden.as_array().unwrap().iter().filter(|case| case["text"].is_string()).cloned().collect()
}

#[track_caller]
fn assert_close(got: &Value, want: &Value) {
    let numbers = |list: &Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let (got, want) = (numbers(got), numbers(want));
    let off = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
    assert!(got.len() == want.len() && off < 1e-4, "{got:?}, expected {want:?}");
}

async fn refused(app: &Router, path: &str, body: Value) -> (Value, String) {
    let answer = post(app, path, body).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    let error = answer.error();
    (error["param"].clone(), error["message"].as_str().unwrap().to_owned())
}

async fn ok(app: &Router, path: &str, body: Value) -> Value {
    let answer = post(app, path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

#[tokio::test]
async fn labels_have_the_probabilities_and_values_of_transformers() {
    for name in
        ["gpt2-classes", "qwen2-properties", "llama-reward", "t5-classes", "bert-classes", "modernbert-mean"]
    {
        let app = head(name);
        let cases = cases(name);
        let texts: Vec<&Value> = cases.iter().map(|case| &case["text"]).collect();
        let classified = ok(&app, "/classify", json!({"input": texts})).await;
        let raw = ok(&app, "/pooling", json!({"input": texts, "use_activation": false})).await;
        let ids: Vec<&Value> = cases.iter().map(|case| &case["ids"]).collect();
        let of_ids = ok(&app, "/pooling", json!({"input": ids, "use_activation": false})).await;
        assert_eq!(raw["data"], of_ids["data"], "{name}");
        for (index, case) in cases.iter().enumerate() {
            let found = &classified["data"][index];
            assert_eq!(
                (&found["index"], &found["num_classes"]),
                (&json!(index), &json!(case["probs"].as_array().unwrap().len()))
            );
            assert_close(&found["probs"], &case["probs"]);
            assert_close(&raw["data"][index]["data"], &case["logits"]);
        }
        let tokens: usize = ids.iter().map(|ids| ids.as_array().unwrap().len()).sum();
        let usage = json!({"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens});
        assert_eq!((&classified["usage"], &raw["usage"]), (&usage, &usage));
        assert_eq!((&classified["object"], &raw["data"][0]["object"]), (&json!("list"), &json!("pooling")));
        assert!(classified["id"].as_str().unwrap().starts_with("classify-"));
    }
}

#[tokio::test]
async fn the_label_is_a_name_of_the_configuration() {
    let app = head("gpt2-classes");
    let model = &get(&app, "/v1/models").await.json()["data"][0];
    assert_eq!((&model["kind"], &model["activation"]), (&json!("gpt2-head"), &json!("softmax")));
    assert_eq!(model["labels"], json!(["bad", "so so", "good"]));
    for case in cases("gpt2-classes") {
        let found = ok(&app, "/classify", json!({"input": case["text"]})).await;
        let probs: Vec<f64> =
            case["probs"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
        let best = (0..3).max_by(|&a, &b| probs[a].total_cmp(&probs[b])).unwrap();
        assert_eq!(found["data"][0]["label"], ["bad", "so so", "good"][best], "{case}");
    }
}

#[tokio::test]
async fn the_value_of_one_label_is_a_number_of_texts_and_chats() {
    let app = head("llama-reward");
    let case = &cases("llama-reward")[0];
    let body = json!({"prompt": case["text"], "number": {"method": "head"}});
    let number = ok(&app, "/v1/completions", body).await["choices"][0]["number"].clone();
    assert_close(&json!([number["value"]]), &case["logits"]);
    assert_eq!((&number["method"], &number["mass"]["closed"]), (&json!("head"), &json!(1.0)));
    let messages = json!([{"role": "user", "content": "7 + 52?"}, {"role": "assistant", "content": "59"}]);
    // The template writes no beginning of another message unless the request has `add_generation_prompt`.
    let rendered = "user: 7 + 52?\nassistant: 59\n";
    for (more, text) in [
        (json!({}), rendered.to_owned()),
        (json!({"add_generation_prompt": true}), format!("{rendered}assistant:")),
    ] {
        let with = |mut body: Value| {
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let body = json!({"input": text, "add_special_tokens": false, "use_activation": false});
        let want = ok(&app, "/pooling", body).await["data"][0]["data"].clone();
        let body = with(json!({"messages": messages, "use_activation": false}));
        assert_eq!(ok(&app, "/pooling", body).await["data"][0]["data"], want, "{text}");
        let chat =
            ok(&app, "/v1/chat/completions", with(json!({"messages": messages, "number": true}))).await;
        assert_close(&json!([chat["choices"][0]["number"]["value"]]), &want);
    }
}

#[tokio::test]
async fn requests_that_a_model_cannot_answer_name_the_reason() {
    let app = head("gpt2-classes");
    let predicts = "`model` predicts 3 labels, neither a text nor a number; use /classify or /pooling";
    let prompt = json!("What is 7 + 52?");
    let scored = json!({"items": [{"prompt": prompt, "target": "59"}]});
    for (path, body, message) in [
        ("/v1/completions", json!({"prompt": prompt}), predicts),
        ("/v1/completions", json!({"prompt": prompt, "number": true}), predicts),
        ("/v1/score", scored, "`model` is of kind gpt2-head, which has no distribution over tokens to score"),
    ] {
        assert_eq!(refused(&app, path, body).await, (json!("model"), message.to_owned()));
    }
    let (param, message) = refused(&server(says("1")), "/classify", json!({"input": "x"})).await;
    assert_eq!(param, "model");
    assert_eq!(message, "`model` is of kind scripted, which has no head that predicts labels");
}

#[tokio::test]
async fn faulty_fields_are_named() {
    let app = head("llama-reward");
    let messages = json!([{"role": "user", "content": "7"}]);
    let long = "7 ".repeat(200);
    for (body, field) in [
        (json!({}), json!("input")),
        (json!({"input": []}), json!("input")),
        (json!({"input": ""}), json!("input")),
        (json!({"input": [[]]}), json!("input")),
        (json!({"input": [[5, 99_999]]}), json!("input")),
        (json!({"input": vec!["x"; 1025]}), json!("input")),
        (json!({"input": "x", "messages": messages}), json!("messages")),
        (json!({"input": "x", "add_generation_prompt": true}), json!("add_generation_prompt")),
        (json!({"input": "x", "continue_final_message": true}), json!("continue_final_message")),
        (json!({"input": "x", "chat_template_kwargs": {}}), json!("chat_template_kwargs")),
        (json!({"input": "x", "truncate_prompt_tokens": 0}), json!("truncate_prompt_tokens")),
        (json!({"messages": [{"role": "poet", "content": "x"}]}), json!("messages[0].role")),
        (json!({"input": "x", "softmax": true}), json!("softmax")),
    ] {
        for path in ["/classify", "/pooling"] {
            assert_eq!(refused(&app, path, body.clone()).await.0, field, "{path} {body}");
        }
    }
    let (_, message) = refused(&app, "/classify", json!({"input": long})).await;
    assert!(message.contains("the model takes at most 128"), "{message}");
    for (inputs, item) in [(json!(["x", long]), "input[1]"), (json!([[5], []]), "input[1]")] {
        let (param, message) = refused(&app, "/pooling", json!({ "input": inputs })).await;
        assert_eq!(param, item, "{message}");
    }
    let body = json!({"input": long, "truncate_prompt_tokens": -1});
    assert_eq!(ok(&app, "/classify", body).await["usage"]["prompt_tokens"], 128);
    // RoBERTa's positions begin after the padding's.
    for (name, max) in [("bert-classes", 128), ("roberta-regression", 126), ("modernbert-mean", 128)] {
        let (param, message) = refused(&head(name), "/classify", json!({"input": long})).await;
        assert_eq!(param, "input", "{message}");
        assert!(message.contains(&format!("the model takes at most {max}")), "{message}");
    }
    let (_, message) = refused(&head("gpt2-classes"), "/classify", json!({"messages": messages})).await;
    assert!(message.contains("has no chat template"), "{message}");
    let answer: Answer = complete(&app, json!({"prompt": ""})).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("prompt")));
}

#[tokio::test]
async fn examples_have_the_fields_of_responses() {
    let app = head("gpt2-classes");
    let api = get(&app, "/openapi.json").await.json();
    for path in ["/classify", "/pooling"] {
        let operation = &api["paths"][path]["post"];
        let request = &operation["requestBody"]["content"]["application/json"]["example"];
        let answer = &operation["responses"]["200"]["content"]["application/json"]["example"];
        let found = ok(&app, path, request.clone()).await;
        let [mut want, mut have] = [BTreeSet::new(), BTreeSet::new()];
        names(answer, "", &mut want);
        names(&found, "", &mut have);
        assert_eq!(want, have, "{path}");
    }
}

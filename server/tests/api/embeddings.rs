//! `POST /v1/embeddings` of tiny checkpoints. `models/tests/golden/embeddings.rs` compares the vectors with
//! transformers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ntl_engine::EngineLimits;
use ntl_models::{LoadOptions, LoadedModel};
use ntl_server::app;
use ntl_server::settings::HttpSettings;
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Value, json};

use crate::docs::names;
use crate::support::{
    becomes, call, config, get, json_request, metric, metric_becomes, post, says, server, state_of,
};

const PATH: &str = "/v1/embeddings";

fn tiny(name: &str) -> Router {
    tiny_with(name, &[])
}

fn tiny_with(name: &str, flags: &[&str]) -> Router {
    app::router(state_of(vec![("tiny", load(name))], config(flags).http, EngineLimits::default()))
}

fn load(name: &str) -> LoadedModel {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data").join(name);
    ntl_models::load(&CheckpointFiles::folder(&folder).unwrap(), LoadOptions::default()).unwrap()
}

async fn ok(app: &Router, body: Value) -> Value {
    let answer = post(app, PATH, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

async fn refused(app: &Router, body: Value) -> (Value, String) {
    let answer = post(app, PATH, body).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    let error = answer.error();
    (error["param"].clone(), error["message"].as_str().unwrap().to_owned())
}

fn floats(vector: &Value) -> Vec<f64> {
    vector.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[tokio::test]
async fn texts_and_ids_have_vectors_of_length_1_in_the_shape_of_openai() {
    for name in ["tiny/llama-ntl", "tiny/t5-ce", "heads/bert-classes"] {
        let app = tiny(name);
        let texts = ["What is 7 + 52?", "12 apples", "What is 7 + 52?"];
        let found = ok(&app, json!({"input": texts, "model": "tiny", "user": "me"})).await;
        assert_eq!((&found["object"], &found["model"]), (&json!("list"), &json!("tiny")));
        for (index, item) in found["data"].as_array().unwrap().iter().enumerate() {
            assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
            let vector = floats(&item["embedding"]);
            let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
            assert!((length - 1.0).abs() < 1e-6, "{name}: {length}");
            let alone = ok(&app, json!({"input": texts[index]})).await;
            assert_eq!(alone["data"][0]["embedding"], item["embedding"], "{name}");
        }
        let mut lists = Vec::new();
        for text in texts {
            let tokens = post(&app, "/tokenize", json!({"prompt": text})).await.json()["tokens"].clone();
            assert_eq!(ok(&app, json!({"input": tokens})).await["data"][0], {
                let mut first = ok(&app, json!({"input": text})).await["data"][0].clone();
                first["index"] = json!(0);
                first
            });
            lists.push(tokens);
        }
        let of_ids = ok(&app, json!({"input": lists})).await;
        assert_eq!((&of_ids["data"], &of_ids["usage"]), (&found["data"], &found["usage"]), "{name}");
        let tokens: usize = lists.iter().map(|list| list.as_array().unwrap().len()).sum();
        let usage = json!({"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens});
        assert_eq!(found["usage"], usage);
    }
}

#[tokio::test]
async fn the_default_pooling_depends_on_the_stack_that_reads_prompts() {
    for (name, default) in [
        ("tiny/gpt2", "last"),
        ("heads/qwen3-regression", "last"),
        ("tiny/t5-rt", "mean"),
        ("heads/t5-classes", "mean"),
    ] {
        let app = tiny(name);
        let of = async |more: Value| {
            let mut body = json!({"input": "What is 7 + 52?", "normalize": false});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            ok(&app, body).await["data"][0]["embedding"].clone()
        };
        let [mean, last] = [of(json!({"pooling": "mean"})).await, of(json!({"pooling": "last"})).await];
        assert_ne!(mean, last, "{name}");
        assert_eq!(of(json!({})).await, if default == "mean" { mean } else { last }, "{name}");
    }
}

#[tokio::test]
async fn base64_is_the_bytes_of_the_same_floats() {
    let app = tiny("tiny/llama-ntl");
    let floats = floats(&ok(&app, json!({"input": "7"})).await["data"][0]["embedding"]);
    let body = json!({"input": "7", "encoding_format": "base64", "dimensions": floats.len()});
    let encoded = ok(&app, body).await["data"][0]["embedding"].clone();
    let bytes = STANDARD.decode(encoded.as_str().unwrap()).unwrap();
    assert_eq!(bytes.len(), 4 * floats.len());
    for (bytes, value) in bytes.chunks(4).zip(floats) {
        let decoded = f32::from_le_bytes(bytes.try_into().unwrap());
        assert_eq!(decoded.to_bits(), (value as f32).to_bits());
    }
}

#[tokio::test]
async fn dimensions_other_than_the_width_of_the_model_are_rejected() {
    let app = tiny("tiny/llama-ntl");
    let width = floats(&ok(&app, json!({"input": "7"})).await["data"][0]["embedding"]).len();
    for dimensions in [0, 1, width - 1, width + 1] {
        let (param, message) = refused(&app, json!({"input": "7", "dimensions": dimensions})).await;
        assert_eq!(param, "dimensions");
        assert_eq!(message, format!("`dimensions` must be {width}, the width of the model, or omitted"));
    }
}

#[tokio::test]
async fn faulty_fields_are_named() {
    let app = tiny("heads/bert-classes");
    let long = "7 ".repeat(200);
    for (body, field) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": vec!["x"; 1025]}), "input"),
        (json!({"input": ["a", "b", ""]}), "input[2]"),
        (json!({"input": [[5], [5, 99_999]]}), "input[1]"),
        (json!({"input": ["a", long]}), "input[1]"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "x", "pooling": "max"}), "pooling"),
        (json!({"input": "x", "dimensions": 0}), "dimensions"),
        (json!({"input": "x", "truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
        (json!({"input": "x", "softmax": true}), "softmax"),
    ] {
        assert_eq!(refused(&app, body.clone()).await.0, field, "{body}");
    }
    let body = json!({"input": long, "truncate_prompt_tokens": -1});
    assert_eq!(ok(&app, body).await["usage"]["prompt_tokens"], 128);
    let (param, message) = refused(&server(says("1")), json!({"input": "x"})).await;
    assert_eq!(param, "model");
    assert_eq!(message, "`model` runs on scripted, which returns no hidden states");
}

#[tokio::test]
async fn a_batch_of_the_maximum_size_is_answered_and_counted() {
    let app = tiny("tiny/llama-ntl");
    let inputs: Vec<String> = (0..1024).map(|index| format!("{index}")).collect();
    let found = ok(&app, json!({ "input": inputs })).await;
    let items = found["data"].as_array().unwrap();
    assert_eq!((items.len(), &items[1023]["index"]), (1024, &json!(1023)));
    let counted = metric(&app, "ntl_prompt_tokens_total{model=\"tiny\"}").await;
    assert_eq!(json!(counted as u64), found["usage"]["prompt_tokens"]);
    let alone = ok(&app, json!({"input": "1023"})).await;
    assert_eq!(alone["data"][0]["embedding"], items[1023]["embedding"]);
}

#[tokio::test]
async fn the_tokens_of_inputs_count_for_the_quota_of_a_key() {
    let app = tiny_with("tiny/llama-ntl", &["--api-key=a", "--tokens-per-day=5"]);
    let request = |input: &str| {
        let mut request = json_request(PATH, &json!({ "input": input }));
        request.headers_mut().insert(header::AUTHORIZATION, "Bearer a".parse().unwrap());
        request
    };
    assert_eq!(post(&app, PATH, json!({"input": "x"})).await.status, 401);
    let used = call(&app, request("What is 7 + 52?")).await.json()["usage"]["prompt_tokens"].clone();
    let series = "ntl_key_tokens_total{key=\"#1\",kind=\"prompt\",model=\"tiny\"}";
    assert_eq!(json!(metric(&app, series).await as u64), used);
    assert_eq!(call(&app, request("7")).await.status, 429);
}

/// The maximum number of inputs of 100 tokens.
fn large() -> Value {
    json!({"input": vec![vec![5; 100]; 1024], "pooling": "mean"})
}

#[tokio::test]
async fn a_request_ends_with_its_deadline_or_with_its_client() {
    let settings = HttpSettings { request_time_max: Duration::from_millis(20), ..config(&[]).http };
    let app =
        app::router(state_of(vec![("tiny", load("tiny/llama-ntl"))], settings, EngineLimits::default()));
    let late = post(&app, PATH, large()).await;
    assert_eq!((late.status.as_u16(), &late.error()["code"]), (504, &json!("deadline")), "{}", late.text);
    metric_becomes(&app, "ntl_sequences_running{model=\"tiny\"}", 0.0).await;
    ok(&app, json!({"input": "7"})).await;

    let app = tiny("tiny/llama-ntl");
    let asked = {
        let app = app.clone();
        tokio::spawn(async move { post(&app, PATH, large()).await })
    };
    let running = "ntl_sequences_running{model=\"tiny\"}";
    becomes("a running sequence", async || metric(&app, running).await > 0.0).await;
    asked.abort();
    assert!(asked.await.is_err_and(|error| error.is_cancelled()));
    metric_becomes(&app, running, 0.0).await;
    metric_becomes(&app, "ntl_queue_depth{model=\"tiny\"}", 0.0).await;
    assert!(metric(&app, "ntl_finished_total{model=\"tiny\",reason=\"abort\"}").await > 0.0);
}

#[tokio::test]
async fn vectors_that_may_need_too_much_memory_are_rejected_with_the_field_to_shorten() {
    let app = tiny_with("tiny/llama-ntl", &["--response-bytes-max=100KB"]);
    let answer = post(&app, PATH, json!({"input": vec!["7"; 300]})).await;
    assert_eq!(answer.status, 413, "{}", answer.text);
    let error = answer.error();
    assert_eq!((&error["code"], &error["param"]), (&json!("response_too_large"), &json!("input")));
    ok(&app, json!({"input": vec!["7"; 30]})).await;
}

#[tokio::test]
async fn the_example_has_the_fields_of_responses() {
    let app = tiny("tiny/llama-ntl");
    let api = get(&app, "/openapi.json").await.json();
    let operation = &api["paths"][PATH]["post"];
    let request = &operation["requestBody"]["content"]["application/json"]["example"];
    let answer = &operation["responses"]["200"]["content"]["application/json"]["example"];
    let found = ok(&app, request.clone()).await;
    let [mut want, mut have] = [BTreeSet::new(), BTreeSet::new()];
    names(answer, "", &mut want);
    names(&found, "", &mut have);
    assert_eq!(want, have);
}

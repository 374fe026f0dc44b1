//! A server over another server: the limits and counts of texts that the engine writes, and the effects of
//! one API key on another one.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use ntl_engine::EngineLimits;
use ntl_models::LoadOptions;
use ntl_server::{app, serve};
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::support::{
    Answer, answer_becomes, becomes, call, config, endless, frozen_state, get, json_request, metric,
    metric_becomes, state_of,
};

/// A request with this text waits at the engine until it is released.
const HOLD: &str = "HOLD";

/// Maximum number of tokens after a prompt of a chat.
const ROOM: u64 = 40;

fn checkpoint() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/tiny/llama-ntl")
}

/// Another server, with a real checkpoint for completions and a script for chats.
struct Engine {
    url: String,
    shared: Arc<Shared>,
    release: watch::Sender<bool>,
}

struct Shared {
    /// Paths and bodies of requests for texts and probabilities.
    bodies: Mutex<Vec<(String, Value)>>,
    held: AtomicUsize,
    released: watch::Receiver<bool>,
    /// Bodies that the engine sends instead of its next completions, the last one first.
    garbage: Mutex<Vec<&'static str>>,
}

/// A request that waits at the engine, until it is dropped.
struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine {
    async fn start() -> Self {
        let files = CheckpointFiles::folder(&checkpoint()).unwrap();
        let loaded = ntl_models::load(&files, LoadOptions::default()).unwrap();
        let state = state_of(vec![("toy", loaded)], endless(), EngineLimits::default());
        let (release, released) = watch::channel(false);
        let shared = Arc::new(Shared {
            bodies: Mutex::default(),
            held: AtomicUsize::new(0),
            released,
            garbage: Mutex::default(),
        });
        let router = app::router(state).layer(from_fn_with_state(Arc::clone(&shared), engine_request));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, shared, release }
    }

    /// The bodies that arrived since the last call.
    fn bodies(&self) -> Vec<Value> {
        let bodies = std::mem::take(&mut *self.shared.bodies.lock().unwrap());
        bodies.into_iter().map(|(_, body)| body).collect()
    }

    fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }
}

async fn engine_request(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if !path.starts_with("/v1/") || path == "/v1/models" {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 24).await.unwrap();
    let body: Value = serde_json::from_slice(&bytes).unwrap();
    shared.bodies.lock().unwrap().push((path.clone(), body.clone()));
    if body.to_string().contains(HOLD) {
        shared.held.fetch_add(1, Ordering::SeqCst);
        let _held = Held(Arc::clone(&shared));
        let mut released = shared.released.clone();
        released.wait_for(|released| *released).await.unwrap();
    }
    if path == "/v1/completions" {
        if let Some(garbage) = shared.garbage.lock().unwrap().pop() {
            return ([(header::CONTENT_TYPE, "application/json")], garbage).into_response();
        }
        return next.run(Request::from_parts(parts, Body::from(bytes))).await;
    }
    chat(&body)
}

/// A chat that rejects limits beyond the room after the prompt, as vLLM does.
fn chat(body: &Value) -> Response {
    let message = match body["max_tokens"].as_u64() {
        _ if body["tool_choice"] == "unknown" => Some("there is no such tool"),
        Some(max) if max > ROOM => Some("'max_tokens' is too large for this model's maximum context length"),
        _ => None,
    };
    if let Some(message) = message {
        let error = json!({"error": {"message": message, "type": "x", "param": null, "code": 400}});
        return (StatusCode::BAD_REQUEST, axum::Json(error)).into_response();
    }
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
    if body["stream"] != true {
        let choices = json!([{"index": 0, "message": {"content": "hello"}, "finish_reason": "length"}]);
        return axum::Json(json!({"choices": choices, "usage": usage})).into_response();
    }
    let mut events = vec![
        json!({"choices": [{"index": 0, "delta": {"content": "hel"}}]}).to_string(),
        json!({"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]}).to_string(),
    ];
    if body["stream_options"]["include_usage"] == true {
        events.push(json!({"choices": [], "usage": usage}).to_string());
    }
    events.push("[DONE]".to_owned());
    let events =
        events.into_iter().map(|event| Ok::<_, std::io::Error>(Bytes::from(format!("data: {event}\n\n"))));
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(futures::stream::iter(events)))
        .into_response()
}

/// A server over one engine, which has received no requests for texts since.
async fn server(engine: &Engine, flags: &[&str]) -> Router {
    let app = server_over(&engine.url, flags).await;
    engine.bodies();
    app
}

/// A server over the replicas at these addresses, with the keys `a` and `b`.
async fn server_over(urls: &str, flags: &[&str]) -> Router {
    let model = format!("--model=toy={urls}");
    let tokenizer = format!("--tokenizer={}", checkpoint().display());
    let fixed = [model.as_str(), tokenizer.as_str(), "--port=0", "--api-key=a,b"];
    let config = config(&[&fixed[..], flags].concat());
    let state = frozen_state(&config);
    let listener = serve::listen(&config, None).await.unwrap();
    let (signal, signals) = mpsc::channel(1);
    let running = state.clone();
    tokio::spawn(async move {
        let _signal = signal;
        serve::run(config, running, listener, signals).await.unwrap()
    });
    becomes("the engine is connected", async || state.models.are_loaded()).await;
    app::router(state)
}

async fn send(app: &Router, key: &str, path: &str, body: &Value) -> Answer {
    let mut request = json_request(path, body);
    request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    call(app, request).await
}

/// Sends requests that run on.
fn send_many(app: &Router, key: &'static str, path: &'static str, body: &Value, count: usize) {
    for _ in 0..count {
        let (app, body) = (app.clone(), body.clone());
        tokio::spawn(async move { send(&app, key, path, &body).await });
    }
}

#[tokio::test]
async fn texts_of_another_engine_keep_to_the_limits_of_the_server() {
    let engine = Engine::start().await;
    let flags = ["--output-tokens-max=50", "--logprobs-max=2", "--queue-max=10"];
    let app = server(&engine, &flags).await;
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h"}}]}]);
    for (path, body, status, param) in [
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 300}), 400, json!("max_tokens")),
        ("/v1/completions", json!({"prompt": "x", "logprobs": 10}), 400, json!("logprobs")),
        ("/v1/completions", json!({"prompt": "x", "n": 100_000}), 400, json!("n")),
        ("/v1/completions", json!({"prompt": "x", "n": 20}), 429, json!(null)),
        (
            "/v1/chat/completions",
            json!({"messages": [], "max_completion_tokens": "999"}),
            400,
            json!("max_completion_tokens"),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": image}),
            400,
            json!("messages[0].content[0].image_url.url"),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [], "kv_transfer_params": {"a": 1}}),
            400,
            json!("kv_transfer_params"),
        ),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 51}), 400, json!("max_output_tokens")),
        (
            "/v1/responses",
            json!({"input": [{"type": "input_image", "image_url": "http://h"}]}),
            400,
            json!("input[0].image_url"),
        ),
    ] {
        let answer = send(&app, "a", path, &body).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (status, &param), "{body}");
    }
    assert_eq!(engine.bodies(), [] as [Value; 0]);
    let answer = send(&app, "a", "/v1/completions", &json!({"prompt": "x", "max_tokens": 5, "n": 2})).await;
    assert_eq!((answer.status, answer.json()["choices"].as_array().unwrap().len()), (StatusCode::OK, 2));
}

#[tokio::test]
async fn a_chat_without_a_limit_gets_that_of_the_server_or_the_rest_of_the_context() {
    let engine = Engine::start().await;
    for (flag, sent) in [
        ("--output-tokens-max=30", vec![json!(30)]),
        ("--output-tokens-max=50", vec![json!(50), json!(null)]),
    ] {
        let app = server(&engine, &[flag]).await;
        let answer = send(&app, "a", "/v1/chat/completions", &json!({"messages": []})).await;
        assert_eq!(
            (answer.status, &answer.json()["choices"][0]["message"]["content"]),
            (StatusCode::OK, &json!("hello"))
        );
        let limits: Vec<Value> = engine.bodies().iter().map(|body| body["max_tokens"].clone()).collect();
        assert_eq!(limits, sent);
        let other = json!({"messages": [], "tool_choice": "unknown"});
        assert_eq!(send(&app, "a", "/v1/chat/completions", &other).await.status, 400);
        assert_eq!(engine.bodies().len(), 1, "a request that is rejected for another reason is sent once");
    }
}

#[tokio::test]
async fn the_tokens_of_texts_are_counted_for_the_key_and_the_model() {
    let engine = Engine::start().await;
    let app = server(&engine, &["--output-tokens-max=30"]).await;
    let tokens = async |kind: &str| {
        metric(&app, &format!("ntl_key_tokens_total{{key=\"#1\",kind=\"{kind}\",model=\"toy\"}}")).await
    };
    let chat = json!({"messages": []});
    assert_eq!(send(&app, "a", "/v1/chat/completions", &chat).await.status, 200);
    assert_eq!((tokens("prompt").await, tokens("completion").await), (7.0, 3.0));
    let stream = json!({"messages": [], "stream": true});
    let chunks = send(&app, "a", "/v1/chat/completions", &stream).await.chunks();
    assert_eq!(chunks.len(), 2, "the client did not request the counts: {chunks:?}");
    assert_eq!((tokens("prompt").await, tokens("completion").await), (14.0, 6.0));
    let stream = json!({"messages": [], "stream": true, "stream_options": {"include_usage": true}});
    let chunks = send(&app, "a", "/v1/chat/completions", &stream).await.chunks();
    assert_eq!(chunks[2]["usage"]["prompt_tokens"], 7);
    let text = json!({"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": true});
    assert_eq!(send(&app, "a", "/v1/completions", &text).await.status, 200);
    assert_eq!((tokens("prompt").await, tokens("completion").await), (24.0, 13.0));
    assert_eq!(metric(&app, "ntl_generation_tokens_total{model=\"toy\"}").await as u64, 13);
    assert_eq!(metric(&app, "ntl_finished_total{model=\"toy\",reason=\"length\"}").await as u64, 2);
}

#[tokio::test]
async fn the_work_of_the_engine_is_in_the_usage_and_in_the_metrics() {
    let engine = Engine::start().await;
    let app = server(&engine, &["--upstream=vllm"]).await;
    let mut total = (0, 0);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "4 + 3 =", "number": true})),
        ("/v1/completions", json!({"prompt": ["4 + 3 =", "1 + 1 ="], "number": {"scale": [1, 9]}})),
        (
            "/v1/completions",
            json!({"prompt": "4 + 3 =", "number": {"after": "=", "rationales": 2}, "max_tokens": 3}),
        ),
        ("/v1/score", json!({"items": [{"prompt": "4 + 3 =", "target": "7"}]})),
        ("/generative_scoring", json!({"query": "4", "items": ["5"], "label_token_ids": [5, 6]})),
        (
            "/v1/decisions",
            json!({"input": "4", "questions": [{"type": "predicate", "instructions": "Is it even?"}]}),
        ),
        (
            "/v1/systemone",
            json!({"state": "4", "questions": {"a": {"type": "noul", "instructions": "Is it even?"}}}),
        ),
    ] {
        let answer = send(&app, "a", path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let sent = engine.bodies();
        let mut prompt_tokens = 0;
        for request in &sent {
            let ids = |prompt: &Value| prompt.as_array().map_or(0, Vec::len) as u64;
            let prompt = &request["prompt"];
            prompt_tokens += match prompt[0] {
                Value::Array(_) => prompt.as_array().unwrap().iter().map(ids).sum(),
                _ => ids(prompt),
            };
        }
        let work = &answer.json()["usage"]["x_engine"];
        assert_eq!(work["requests"], sent.len(), "{path} {body}: {work}");
        assert_eq!(work["prompt_tokens"], prompt_tokens, "{path} {body}: {work}");
        total.0 += prompt_tokens;
        total.1 += work["completion_tokens"].as_u64().unwrap();
    }
    for (kind, tokens) in [("prompt", total.0), ("completion", total.1)] {
        let series = format!("ntl_upstream_tokens_total{{kind=\"{kind}\",model=\"toy\"}}");
        assert_eq!(metric(&app, &series).await as u64, tokens, "{kind}");
    }
}

#[tokio::test]
async fn another_ntl_server_computes_a_number_with_a_single_request() {
    let engine = Engine::start().await;
    let app = server(&engine, &[]).await;
    let trees = server(&engine, &["--upstream=vllm"]).await;
    let schema = json!({"type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 50}}});
    for fields in [
        json!({"number": true}),
        json!({"number": {"scale": [1, 9], "objective": "median"}}),
        json!({"number": {"after": "="}, "max_tokens": 3, "temperature": 0}),
        json!({"number": {}, "guided_json": schema, "max_tokens": 30, "temperature": 0}),
    ] {
        let mut body = json!({"prompt": "4 + 3 =", "seed": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = send(&app, "a", "/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{fields}: {}", answer.text);
        let sent = engine.bodies();
        assert_eq!(sent.len(), 1, "{fields}");
        assert_eq!(sent[0]["number"], fields["number"]);
        assert!(sent[0]["cache_salt"].is_string(), "clients do not share prefixes");
        let near = &send(&trees, "a", "/v1/completions", &body).await.json()["choices"][0];
        assert!(engine.bodies().iter().all(|body| body.get("number").is_none()), "{fields}");
        let choice = &answer.json()["choices"][0];
        for path in ["/number/value", "/numbers/0/number/value"] {
            let values = [choice, near].map(|choice| choice.pointer(path).and_then(Value::as_f64));
            match values {
                [Some(a), Some(b)] => assert!((a - b).abs() < 1e-3 * a.abs().max(1.0), "{fields}: {a} {b}"),
                [a, b] => assert_eq!(a, b, "{fields}"),
            }
        }
        body["stream"] = true.into();
        let chunks = send(&app, "a", "/v1/completions", &body).await.chunks();
        let numbers = |chunk: &Value| chunk["choices"][0].get("number") == Some(&choice["number"]);
        assert!(fields.get("guided_json").is_some() || chunks.iter().any(numbers), "{fields}: {chunks:?}");
        engine.bodies();
    }
    let wrong = json!({"prompt": "4 + 3 =", "number": {"scale": [9, 1]}});
    let refused = send(&app, "a", "/v1/completions", &wrong).await;
    let message = refused.error()["message"].as_str().unwrap().to_owned();
    assert_eq!(refused.status, 400);
    assert!(message.contains("`number.scale`"), "{message}");
    assert_eq!(refused.error()["param"], "number.scale");
}

#[tokio::test]
async fn a_replica_that_sends_garbage_instead_of_a_number_changes_no_result() {
    let engines = [Engine::start().await, Engine::start().await];
    let app = server_over(&format!("{},{}", engines[0].url, engines[1].url), &[]).await;
    let body = json!({"prompt": "4 + 3 =", "number": true});
    let expected = send(&app, "a", "/v1/completions", &body).await.json()["choices"].clone();
    for garbage in ["", "<html>busy</html>", "{}", r#"{"choices": []}"#, r#"{"choices": [{"index": 0}]}"#] {
        for engine in &engines {
            *engine.shared.garbage.lock().unwrap() = vec![garbage];
            for _ in 0..4 {
                let answer = send(&app, "a", "/v1/completions", &body).await;
                assert_eq!((answer.status.as_u16(), &answer.json()["choices"]), (200, &expected));
            }
            assert!(engine.shared.garbage.lock().unwrap().is_empty(), "{garbage} was not sent");
        }
    }
    for engine in &engines {
        *engine.shared.garbage.lock().unwrap() = vec!["{}"];
    }
    let failed = send(&app, "a", "/v1/completions", &body).await;
    assert_eq!(failed.status, 502, "{}", failed.text);
    assert!(failed.text.contains("it lacks a complete answer"), "{}", failed.text);
}

#[tokio::test]
async fn a_key_without_budget_for_the_engine_gets_no_more_of_its_work() {
    let engine = Engine::start().await;
    let app = server(&engine, &["--upstream=vllm", "--upstream-budget=20"]).await;
    let number = json!({"prompt": "4 + 3 =", "number": true});
    assert_eq!(send(&app, "a", "/v1/completions", &number).await.status, 200);
    let questions = json!([{"type": "predicate", "instructions": "Is it even?"}]);
    for (path, body) in [
        ("/v1/completions", number.clone()),
        ("/v1/completions", json!({"prompt": "4 + 3 =", "max_tokens": 2})),
        ("/v1/chat/completions", json!({"messages": []})),
        ("/v1/score", json!({"items": [{"prompt": "4", "target": "5"}]})),
        ("/v1/decisions", json!({"input": "4", "questions": questions})),
    ] {
        let refused = send(&app, "a", path, &body).await;
        assert_eq!(refused.status, 429, "{path}: {}", refused.text);
        assert_eq!(refused.error()["code"], "rate_limit_exceeded");
        let message = refused.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("is 20 tokens of other engines per day, and it is used up"), "{message}");
        assert!(refused.header(header::RETRY_AFTER).is_some());
    }
    let tokenized = send(&app, "a", "/tokenize", &json!({"prompt": "x"})).await;
    assert_eq!(tokenized.status, 200, "it needs no engine");
    assert_eq!(send(&app, "b", "/v1/completions", &number).await.status, 200);
}

#[tokio::test]
async fn a_quota_counts_the_tokens_of_the_engine_and_estimates_a_prompt_that_it_does_not_report() {
    let engine = Engine::start().await;
    let app = server(&engine, &["--output-tokens-max=30", "--tokens-per-day=1000000"]).await;
    let left = async || {
        let answer = send(&app, "a", "/tokenize", &json!({"prompt": "x"})).await;
        answer.headers["x-ratelimit-remaining-tokens"].to_str().unwrap().parse::<usize>().unwrap()
    };
    for body in [json!({"messages": []}), json!({"messages": [], "stream": true})] {
        let before = left().await;
        assert_eq!(send(&app, "a", "/v1/chat/completions", &body).await.status, 200);
        assert_eq!(before - left().await, 7 + 3, "{body}");
    }
    let rejected = json!({"prompt": [999_999], "max_tokens": 4});
    let before = left().await;
    assert_eq!(send(&app, "a", "/v1/completions", &rejected).await.status, 400);
    assert_eq!(left().await, before, "the engine has computed nothing");
    // The client is gone before the engine has answered.
    let words = "word ".repeat(400);
    let asked = {
        let (app, body) = (app.clone(), json!({"prompt": format!("{HOLD}{words}"), "max_tokens": 30}));
        tokio::spawn(async move { send(&app, "a", "/v1/completions", &body).await })
    };
    becomes("the text is at the engine", async || engine.held() == 1).await;
    asked.abort();
    assert!(asked.await.is_err_and(|error| error.is_cancelled()));
    let used = before - left().await;
    assert!((530..600).contains(&used), "one token for 4 bytes, and the limit of the text: {used}");
}

#[tokio::test]
async fn texts_run_and_wait_in_the_gauges_and_are_rejected_when_the_queue_is_full() {
    let engine = Engine::start().await;
    let app = server(&engine, &["--concurrency-max=4", "--queue-max=3"]).await;
    let text = json!({"prompt": HOLD, "max_tokens": 4});
    // Three of four may run at a time.
    send_many(&app, "a", "/v1/completions", &text, 3);
    becomes("texts are at the engine", async || engine.held() == 3).await;
    send_many(&app, "a", "/v1/completions", &text, 3);
    answer_becomes(&app, "/get_load", &json!({"running": 3, "waiting": 3, "load": 6})).await;
    assert_eq!(metric(&app, "ntl_sequences_running{model=\"toy\"}").await as u64, 3);
    let answer = send(&app, "b", "/v1/completions", &text).await;
    assert_eq!(
        (answer.status, &answer.error()["code"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("queue_full"))
    );
    assert_eq!(engine.held(), 3);
    engine.release.send_replace(true);
    answer_becomes(&app, "/get_load", &json!({"running": 0, "waiting": 0, "load": 0})).await;
}

#[tokio::test]
async fn a_text_and_a_number_of_another_key_do_not_wait_for_texts_and_numbers_of_one() {
    let engine = Engine::start().await;
    let flags = ["--upstream=vllm", "--concurrency-max=4", "--upstream-concurrency=4"];
    let app = server(&engine, &flags).await;
    send_many(&app, "a", "/v1/completions", &json!({"prompt": HOLD, "max_tokens": 4}), 12);
    // The engine holds the text before the number.
    let after = json!({"prompt": "x", "number": {"after": HOLD, "rationales": 4}, "max_tokens": 4});
    send_many(&app, "a", "/v1/completions", &after, 12);
    becomes("all that may run is at the engine", async || engine.held() == 3 + 3).await;
    metric_becomes(&app, "ntl_sequences_running{model=\"toy\"}", 3.0 + 3.0).await;
    for body in [
        json!({"prompt": "x", "max_tokens": 4}),
        json!({"prompt": "x", "number": {"nodes_max": 50}}),
        json!({"prompt": "x", "number": {"nodes_max": 50, "after": " "}, "max_tokens": 3}),
    ] {
        let answer = send(&app, "b", "/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    }
    assert_eq!(engine.held(), 6);
    assert_eq!(get(&app, "/health/ready").await.status, 200);
}

#[tokio::test]
async fn an_allowed_field_with_an_address_is_forwarded() {
    let engine = Engine::start().await;
    let app = server(&engine, &["--upstream-fields=image_url,toy=kv_transfer_params"]).await;
    let part = json!({"type": "image_url", "image_url": {"url": "http://h"}});
    let body = json!({"messages": [{"content": [part]}], "kv_transfer_params": {"a": 1}, "max_tokens": 4});
    assert_eq!(send(&app, "a", "/v1/chat/completions", &body).await.status, 200);
    let sent = engine.bodies().remove(0);
    assert_eq!(
        (&sent["messages"], &sent["kv_transfer_params"]),
        (&body["messages"], &body["kv_transfer_params"])
    );
}

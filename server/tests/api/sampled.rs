//! A server over an engine that answers chats and reports no probabilities: numbers and decisions from
//! sampled answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get as get_route, post as post_route};
use axum::{Json, Router};
use ntl_server::{app, serve};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{becomes, call, config, frozen_state, get, json_request, metric, post};

/// The answers to a question about a rating, in turn.
const RATINGS: [&str; 4] = ["4", "4", "5", "hard to say"];

/// An engine whose model reasons: it takes neither a temperature nor a seed.
struct Engine {
    url: String,
    arrived: Arc<AtomicUsize>,
}

impl Engine {
    async fn start() -> Self {
        let arrived = Arc::new(AtomicUsize::new(0));
        let models = json!({"data": [{"id": "o9", "owned_by": "somebody"}]});
        let router = Router::new()
            .route("/v1/models", get_route(|| async { Json(models) }))
            .route("/v1/chat/completions", post_route(chat))
            .with_state(Arc::clone(&arrived));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, arrived }
    }
}

async fn chat(State(arrived): State<Arc<AtomicUsize>>, Json(body): Json<Value>) -> Response {
    if let Some(name) =
        ["max_tokens", "temperature", "top_p", "seed"].iter().find(|name| body.get(**name).is_some())
    {
        let error = json!({"error": {"message": format!("Unsupported parameter: {name}")}});
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    let number = arrived.fetch_add(1, Ordering::SeqCst);
    let question = body["messages"].to_string();
    let content = if question.contains("Yes or No only") {
        if number % 4 == 0 { "No." } else { "Yes" }
    } else if question.contains("letter of one option") {
        ["A", "**B**", "B: tea", "neither"][number % 4]
    } else {
        RATINGS[number % 4]
    };
    let message = json!({"role": "assistant", "content": content, "reasoning_content": "1 or 2"});
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 4}});
    Json(json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}))
        .into_response()
}

async fn server(engine: &Engine) -> Router {
    server_with(engine, &[]).await
}

async fn server_with(engine: &Engine, flags: &[&str]) -> Router {
    let model = format!("--model=judge={}", engine.url);
    let config = config(&[&[model.as_str(), "--port=0"], flags].concat());
    let state = frozen_state(&config);
    let listener = serve::listen(&config, None).await.unwrap();
    let (signal, signals) = mpsc::channel(1);
    let running = state.clone();
    tokio::spawn(async move {
        let _signal = signal;
        serve::run(config, running, listener, signals).await.unwrap()
    });
    becomes("the engine is connected", async || state.models.are_loaded()).await;
    engine.arrived.store(0, Ordering::SeqCst);
    app::router(state)
}

fn rate(number: Value) -> Value {
    json!({"messages": [{"role": "user", "content": "Rate it from 1 to 5."}], "number": number})
}

#[tokio::test]
async fn a_number_is_read_from_sampled_answers_with_bounds_and_the_usage_of_the_engine() {
    let engine = Engine::start().await;
    let app = server(&engine).await;
    let answer = post(&app, "/v1/chat/completions", rate(json!({"scale": [1, 5], "samples": 40}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = answer.json();
    let number = &body["choices"][0]["number"];
    assert_eq!(number["method"], "sample");
    assert_eq!(number["mass"], json!({"closed": 0.75, "invalid": 0.25, "open": 0.0, "samples": 40}));
    let value = number["value"].as_f64().unwrap();
    assert!((value - 13.0 / 3.0).abs() < 1e-9, "{value}");
    let bounds = &number["bounds"];
    assert_eq!(bounds["confidence"], 0.95);
    let [low, high] = [0, 1].map(|end| bounds["value"][end].as_f64().unwrap());
    assert!(3.5 < low && low < value && value < high && high < 4.8, "{bounds}");
    let support = &number["support"][0];
    assert_eq!((&support["value"], &support["probability"]), (&json!(4.0), &json!(0.5)));
    let [low, high] = [0, 1].map(|end| support["bounds"][end].as_f64().unwrap());
    assert!(0.3 < low && low < 0.5 && 0.5 < high && high < 0.7, "{support}");
    let reason = number["reason"].as_str().unwrap();
    assert_eq!(reason, "the engine takes no temperature: its answers are sampled at its default");
    let usage = json!({"prompt_tokens": 360, "completion_tokens": 200, "total_tokens": 560,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 160},
        "x_engine": {"requests": 40, "prompt_tokens": 360, "cached_tokens": 0, "completion_tokens": 200}});
    assert_eq!(body["usage"], usage);
    assert_eq!(engine.arrived.load(Ordering::SeqCst), 40);
    assert_eq!(metric(&app, "ntl_prompt_tokens_total{model=\"judge\"}").await as u64, 360);
    assert_eq!(metric(&app, "ntl_generation_tokens_total{model=\"judge\"}").await as u64, 200);
    let decodes = "ntl_number_decodes_total{method=\"sample\",model=\"judge\",truncated=\"false\"}";
    assert_eq!(metric(&app, decodes).await as u64, 1);
    assert_eq!(metric(&app, "ntl_sequences_running{model=\"judge\"}").await as u64, 0);
}

#[tokio::test]
async fn a_quota_counts_each_sampled_answer_once() {
    let engine = Engine::start().await;
    let app = server_with(&engine, &["--api-key=a", "--tokens-per-day=1000000"]).await;
    let questions = json!([{"type": "predicate", "instructions": "Is it hot?"}]);
    let mut left = 1_000_000;
    for (path, body) in [
        ("/v1/chat/completions", rate(json!({"scale": [1, 5], "samples": 40}))),
        ("/v1/decisions", json!({"input": "A cup.", "questions": questions, "x_samples": 40})),
    ] {
        let mut request = json_request(path, &body);
        request.headers_mut().insert(header::AUTHORIZATION, "Bearer a".parse().unwrap());
        let answer = call(&app, request).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        // Each answer has 9 tokens of its prompt and 5 of its text.
        left -= 40 * (9 + 5);
        assert_eq!(answer.headers["x-ratelimit-remaining-tokens"], left.to_string(), "{path}");
    }
}

#[tokio::test]
async fn sampling_stops_early_and_a_stream_has_the_number_at_once() {
    let engine = Engine::start().await;
    let app = server(&engine).await;
    let options = json!({"scale": [1, 5], "samples": 1000, "precision": 2});
    let body = post(&app, "/v1/chat/completions", rate(options.clone())).await.json();
    let samples = body["usage"]["x_engine"]["requests"].as_u64().unwrap();
    assert!([16, 32, 64].contains(&samples), "{body}");
    assert_eq!(body["choices"][0]["number"]["mass"]["samples"], samples);
    let mut stream = rate(options);
    stream["stream"] = true.into();
    stream["stream_options"] = json!({"include_usage": true});
    let chunks = post(&app, "/v1/chat/completions", stream).await.chunks();
    let with_number: Vec<&Value> =
        chunks.iter().filter(|chunk| chunk["choices"][0]["number"].is_object()).collect();
    assert_eq!(with_number.len(), 1, "{chunks:?}");
    // The order of the answers decides when the bounds are narrow.
    let samples = chunks.last().unwrap()["usage"]["x_engine"]["requests"].as_u64().unwrap();
    assert!([16, 32, 64].contains(&samples), "{chunks:?}");
}

#[tokio::test]
async fn decisions_are_counted_over_answers_with_exact_bounds() {
    let engine = Engine::start().await;
    let app = server(&engine).await;
    let questions = json!([
        {"type": "predicate", "instructions": "Is it hot?"},
        {"type": "choice", "instructions": "Which drink?", "choices": [{"value": "coffee"}, {"value": "tea"}]},
        {"type": "number", "instructions": "How good?", "minimum": 1, "maximum": 5, "step": 1},
    ]);
    let body = json!({"input": "A cup.", "questions": questions, "x_samples": 80});
    let body = post(&app, "/v1/decisions", body).await.json();
    let answers = &body["answers"];
    for answer in answers.as_array().unwrap() {
        assert_eq!(answer["x_mass"]["samples"], 80, "{answer}");
    }
    // Requests of several questions arrive in any order.
    let probability = answers[0]["probability"].as_f64().unwrap();
    let [low, high] = [0, 1].map(|end| answers[0]["x_bounds"]["probability"][end].as_f64().unwrap());
    assert!(0.5 < low && low < probability && probability < high && high < 0.95, "{body}");
    assert_eq!(answers[1]["choice"], "tea", "{body}");
    assert_eq!(answers[2]["distribution"]["method"], "sample", "{body}");
    let usage = &body["usage"];
    assert_eq!(
        (&usage["x_engine"]["requests"], &usage["input_tokens"], &usage["output_tokens"]),
        (&json!(240), &json!(2160), &json!(1200))
    );
    let question = json!({"hot": {"type": "noul", "instructions": "Is it hot?"}});
    let body = json!({"state": "A cup.", "questions": question, "x_samples": 8});
    let body = post(&app, "/v1/systemone", body).await.json();
    assert_eq!(
        (&body["usage"]["x_engine"]["requests"], &body["answers"]["hot"]["x_mass"]["samples"]),
        (&json!(8), &json!(8))
    );
    let dry = json!({"input": "A cup.", "questions": [{"type": "predicate", "instructions": "Is it hot?"}], "x_dry_run": true});
    let prompts = post(&app, "/v1/decisions", dry).await.json();
    assert_eq!(prompts["prompts"][0]["answers"], json!(["Yes", "No"]));
}

#[tokio::test]
async fn what_needs_tokens_is_rejected_with_the_route_to_use_instead() {
    let engine = Engine::start().await;
    let app = server(&engine).await;
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "x", "number": {}})),
        ("/v1/responses", json!({"input": "x", "number": {}})),
        ("/v1/score", json!({"items": [{"prompt": "x", "target": "1"}]})),
        ("/tokenize", json!({"prompt": "x"})),
    ] {
        let answer = post(&app, path, body).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("model")), "{path}");
        assert!(answer.text.contains("/v1/chat/completions"), "{}", answer.text);
    }
    assert_eq!(get(&app, "/tokenizer_info").await.status, 400);
    let answer = post(&app, "/v1/completions", json!({"prompt": "x"})).await;
    assert!(answer.status == 400 && answer.text.contains("use /v1/chat/completions"), "{}", answer.text);
    for (body, param) in [
        (rate(json!({"method": "tree"})), "number.method"),
        (rate(json!({"tolerance": 0.1})), "number.tolerance"),
        (json!({"messages": [], "number": {}}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "number": {}, "temperature": 0.5}),
            "temperature",
        ),
        (json!({"messages": [{"role": "user", "content": "x"}], "number": {}, "n": 2}), "n"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h"}}]}],
                "number": {}}),
            "messages[0].content[0].image_url.url",
        ),
    ] {
        let answer = post(&app, "/v1/chat/completions", body).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.error()["param"]),
            (400, &json!(param)),
            "{}",
            answer.text
        );
    }
    let question = json!([{"type": "predicate", "instructions": "Is it hot?", "x_tolerance": 0.1}]);
    let answer = post(&app, "/v1/decisions", json!({"input": "x", "questions": question})).await;
    assert_eq!(answer.error()["param"], "questions[0].x_tolerance");
    assert_eq!(engine.arrived.load(Ordering::SeqCst), 0);
    let text = json!({"messages": [{"role": "user", "content": "x"}]});
    let answer = post(&app, "/v1/chat/completions", text).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "4", "{answer}");
    let model = get(&app, "/v1/models/judge").await.json();
    assert_eq!((&model["engine"], &model["alternatives"]), (&json!("openai-chat"), &json!("none")));
}

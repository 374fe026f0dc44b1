//! A scripted server on a free port, and the binary to run against it. Not every test uses all of it.

#![expect(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A status that means: never answer.
pub(crate) const HANG: u16 = 0;

/// What the server says next.
pub(crate) struct Says(pub(crate) u16, pub(crate) Vec<(&'static str, &'static str)>, pub(crate) String);

/// Decides on an answer from the prompt and how often it was asked before.
type Script = dyn Fn(&str, usize) -> Says + Send + Sync;

struct Shared {
    models: Vec<&'static str>,
    script: Box<Script>,
    asked: Mutex<HashMap<String, usize>>,
    bodies: Mutex<Vec<Value>>,
    others: Mutex<Vec<(&'static str, Value)>>,
    keys: Mutex<Vec<Option<String>>>,
}

/// Runs until dropped.
pub(crate) struct Mock {
    pub(crate) url: String,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl Mock {
    /// A server that knows models and completions, as text or as chat.
    pub(crate) fn start(
        models: &[&'static str],
        script: impl Fn(&str, usize) -> Says + Send + Sync + 'static,
    ) -> Self {
        Self::serve(models, script, Router::new())
    }

    /// A server that can also split texts (a token a character, and 1 at the end) and score (each token at -0.5).
    pub(crate) fn with_tokens(
        models: &[&'static str],
        script: impl Fn(&str, usize) -> Says + Send + Sync + 'static,
    ) -> Self {
        let more = Router::new()
            .route("/tokenize", post(tokenize_route))
            .route("/detokenize", post(detokenize_route))
            .route("/v1/score", post(score_route));
        Self::serve(models, script, more)
    }

    fn serve(
        models: &[&'static str],
        script: impl Fn(&str, usize) -> Says + Send + Sync + 'static,
        more: Router<Arc<Shared>>,
    ) -> Self {
        let shared = Arc::new(Shared {
            models: models.to_vec(),
            script: Box::new(script),
            asked: Mutex::default(),
            bodies: Mutex::default(),
            others: Mutex::default(),
            keys: Mutex::default(),
        });
        let app = Router::new()
            .route("/v1/models", get(models_route))
            .route("/v1/completions", post(completions_route))
            .route("/v1/chat/completions", post(completions_route))
            .merge(more)
            .with_state(Arc::clone(&shared));
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { url, shared, _runtime: runtime }
    }

    /// Bodies of the requests to routes beside completions, with the routes.
    pub(crate) fn others(&self) -> Vec<(&'static str, Value)> {
        self.shared.others.lock().unwrap().clone()
    }

    /// Bodies of the completion requests so far, in order of arrival.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.shared.bodies.lock().unwrap().clone()
    }

    /// `Authorization` headers so far.
    pub(crate) fn keys(&self) -> Vec<Option<String>> {
        self.shared.keys.lock().unwrap().clone()
    }
}

async fn models_route(State(shared): State<Arc<Shared>>) -> Json<Value> {
    // As ours say it of themselves; the one of that name keeps numbers as values, as does one whose name is followed by that.
    // `#` and a fingerprint may stand behind the name; `#` alone is a server that gives none. `@` and a type of weights come last.
    let model = |listed: &&str| {
        let (listed, dtype) = listed.split_once('@').unwrap_or((listed, ""));
        let (listed, fingerprint) = listed.split_once('#').unwrap_or((listed, "00ff"));
        let (id, encoding) =
            listed.split_once('=').unwrap_or((listed, if listed == "xval" { "xval" } else { "text" }));
        let mut model =
            json!({ "id": id, "object": "model", "number_encoding": encoding, "fingerprint": fingerprint });
        if fingerprint.is_empty() {
            model.as_object_mut().unwrap().remove("fingerprint");
        }
        if id == "decoder" {
            model["kind"] = "llama".into();
        }
        if !dtype.is_empty() {
            model["dtype"] = dtype.into();
        }
        model
    };
    let data: Vec<Value> = shared.models.iter().map(model).collect();
    Json(json!({ "object": "list", "data": data }))
}

async fn completions_route(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let last = body["messages"].as_array().and_then(|messages| messages.last());
    let prompt = body["prompt"].as_str().or(last.and_then(|message| message["content"].as_str()));
    let prompt = prompt.map_or_else(|| body["prompt"].to_string(), str::to_owned);
    let key = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    shared.keys.lock().unwrap().push(key);
    shared.bodies.lock().unwrap().push(body);
    let before = {
        let mut asked = shared.asked.lock().unwrap();
        let count = asked.entry(prompt.clone()).or_insert(0);
        *count += 1;
        *count - 1
    };
    let Says(status, extra, text) = (shared.script)(&prompt, before);
    if status == HANG {
        std::future::pending::<()>().await;
    }
    let mut response = (StatusCode::from_u16(status).unwrap(), text).into_response();
    for (name, value) in extra {
        response.headers_mut().insert(HeaderName::from_static(name), value.parse().unwrap());
    }
    response
}

fn noted(shared: &Shared, route: &'static str, body: &Bytes) -> Value {
    let body: Value = serde_json::from_slice(body).unwrap();
    shared.others.lock().unwrap().push((route, body.clone()));
    body
}

/// A token for each character, and 1.
pub(crate) fn ids(text: &str) -> Vec<u32> {
    text.chars().map(u32::from).chain([1]).collect()
}

/// Refuses texts that begin with `HUGE`.
async fn tokenize_route(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let body = noted(&shared, "tokenize", &body);
    if body["prompt"].as_str().unwrap().starts_with("HUGE") {
        return (StatusCode::PAYLOAD_TOO_LARGE, error(413, "too large").2).into_response();
    }
    let mut tokens = ids(body["prompt"].as_str().unwrap());
    // The model of that name begins texts with 2 and does not end them.
    let is_decoder = body["model"] == "decoder";
    if is_decoder || body["add_special_tokens"] == false {
        tokens.pop();
    }
    if is_decoder && body["add_special_tokens"] != false {
        tokens.insert(0, 2);
    }
    Json(json!({ "count": tokens.len(), "tokens": tokens })).into_response()
}

async fn detokenize_route(State(shared): State<Arc<Shared>>, body: Bytes) -> Json<Value> {
    let body = noted(&shared, "detokenize", &body);
    let ids = body["tokens"].as_array().unwrap().iter();
    let text: String =
        ids.map(|id| char::from_u32(u32::try_from(id.as_u64().unwrap()).unwrap()).unwrap()).collect();
    Json(json!({ "prompt": text }))
}

/// Refuses targets that begin with `HUGE`.
async fn score_route(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let body = noted(&shared, "score", &body);
    let target = &body["items"][0]["target"];
    if target.as_str().is_some_and(|text| text.starts_with("HUGE")) {
        return (StatusCode::PAYLOAD_TOO_LARGE, error(413, "too large").2).into_response();
    }
    let tokens = match target.as_str() {
        Some(text) => ids(text),
        None => serde_json::from_value(target.clone()).unwrap(),
    };
    let item = json!({
        "index": 0, "token_ids": tokens, "token_logprobs": vec![-0.5; tokens.len()],
        "losses": { "ce": 0.5, "ntl-was": 0.25, "ntl-mse": null }, "total": 0.575, "perplexity": 1.6
    });
    Json(json!({ "object": "list", "data": [item] })).into_response()
}

/// A completion with this text, in the least that the OpenAI API allows.
pub(crate) fn text(text: &str) -> Says {
    let body = json!({ "id": "x", "object": "text_completion", "choices": [{ "index": 0, "text": text }] });
    Says(200, vec![], body.to_string())
}

/// A completion with a number.
pub(crate) fn number(trimmed_mean: f64, median: f64, mode: f64) -> Says {
    let number = json!({
        "value": trimmed_mean, "objective": "mean", "method": "tree", "mean": 1e6, "trimmed_mean": trimmed_mean,
        "median": median, "mode": mode, "std": 1.0,
        "quantiles": [{ "q": 0.05, "value": mode - 4.0 }, { "q": 0.95, "value": mode + 1.0 }],
        "support": [{ "value": mode, "text": "x", "probability": 0.5 }, { "value": median, "text": "y", "probability": 0.25 }],
        "mass": { "closed": 0.75, "invalid": 0.25, "open": 0.0 }, "bounds": { "quantiles": [] },
        "nodes": 3, "forward_passes": 2, "truncated": false, "reason": null
    });
    Says(200, vec![], json!({ "choices": [{ "index": 0, "text": "x", "number": number }] }).to_string())
}

/// An error object with this message.
pub(crate) fn error(status: u16, message: &str) -> Says {
    let body = json!({ "error": { "message": message, "type": "t", "param": null, "code": null } });
    Says(status, vec![], body.to_string())
}

/// The binary without the environment of the test.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ntl-eval"));
    command.env_clear().args(args);
    command
}

/// Runs the binary without the environment of the test.
pub(crate) fn ntl_eval(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Standard output.
pub(crate) fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error.
pub(crate) fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

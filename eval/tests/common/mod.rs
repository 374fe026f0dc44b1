//! A scripted server on a free port, and the binary to run against it. Not every test uses all of it.

#![expect(dead_code, reason = "each test file uses its part")]

pub(crate) mod judging;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::Listener;
use axum::{Json, Router};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// Writes a data set of the questions `0 + 1`, `1 + 1`, and so on, and returns its path.
pub(crate) fn additions(folder: &TempDir, items: usize) -> String {
    let file = folder.path().join("pairs.txt");
    let lines: String = (0..items).map(|a| format!("{a} + 1\n{}\n", a + 1)).collect();
    std::fs::write(&file, lines).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A status that means that the server never answers.
pub(crate) const HANG: u16 = 0;

/// A response of the server: status, headers and body.
pub(crate) struct Scripted(pub(crate) u16, pub(crate) Vec<(&'static str, &'static str)>, pub(crate) String);

/// Returns the response for a prompt and the number of earlier requests with it.
type Script = dyn Fn(&str, usize) -> Scripted + Send + Sync;

struct Shared {
    models: Vec<&'static str>,
    /// Number of further requests for the list of models that fail, because the server is loading.
    loads: AtomicUsize,
    script: Box<Script>,
    asked: Mutex<HashMap<String, usize>>,
    bodies: Mutex<Vec<Value>>,
    others: Mutex<Vec<(&'static str, Value)>>,
    keys: Mutex<Vec<Option<String>>>,
}

/// A server that runs until it is dropped.
pub(crate) struct Mock {
    pub(crate) url: String,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl Mock {
    /// Starts a server that supports models and completions, as text or as chat.
    pub(crate) fn start(
        models: &[&'static str],
        script: impl Fn(&str, usize) -> Scripted + Send + Sync + 'static,
    ) -> Self {
        Self::serve(shared(models, script), Router::new(), None)
    }

    /// Starts the same server, which rejects the first `loads` requests for its list of models.
    pub(crate) fn loading(
        loads: usize,
        script: impl Fn(&str, usize) -> Scripted + Send + Sync + 'static,
    ) -> Self {
        let shared = shared(&["tiny"], script);
        shared.loads.store(loads, Ordering::SeqCst);
        Self::serve(shared, Router::new(), None)
    }

    /// Starts the same server over HTTPS.
    pub(crate) fn start_tls(
        models: &[&'static str],
        script: impl Fn(&str, usize) -> Scripted + Send + Sync + 'static,
        tls: ServerConfig,
    ) -> Self {
        Self::serve(shared(models, script), Router::new(), Some(tls))
    }

    /// Starts a server that also supports tokenizing (one token per character, then 1) and scoring (each
    /// token at -0.5).
    pub(crate) fn with_tokens(
        models: &[&'static str],
        script: impl Fn(&str, usize) -> Scripted + Send + Sync + 'static,
    ) -> Self {
        let more = Router::new()
            .route("/tokenize", post(tokenize_route))
            .route("/detokenize", post(detokenize_route))
            .route("/v1/score", post(score_route));
        Self::serve(shared(models, script), more, None)
    }

    /// Starts a server of decision models. The script gets the body of a request as text.
    pub(crate) fn of_decisions(script: impl Fn(&str, usize) -> Scripted + Send + Sync + 'static) -> Self {
        let more = Router::new()
            .route("/v1/decisions", post(decisions_route))
            .route("/v1/systemone", post(decisions_route));
        Self::serve(shared(&["tiny"], script), more, None)
    }

    fn serve(shared: Arc<Shared>, more: Router<Arc<Shared>>, tls: Option<ServerConfig>) -> Self {
        let app = Router::new()
            .route("/v1/models", get(models_route))
            .route("/v1/completions", post(completions_route))
            .route("/v1/chat/completions", post(completions_route))
            .merge(more)
            .with_state(Arc::clone(&shared));
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        match tls {
            Some(tls) => {
                let listener = TlsListener { listener, acceptor: Arc::new(tls).into() };
                runtime.spawn(async move { axum::serve(listener, app).await });
            }
            None => {
                runtime.spawn(async move { axum::serve(listener, app).await });
            }
        }
        Self { url: format!("{scheme}://{address}"), shared, _runtime: runtime }
    }

    /// Returns the bodies of the requests to routes other than completions, with the routes.
    pub(crate) fn others(&self) -> Vec<(&'static str, Value)> {
        self.shared.others.lock().unwrap().clone()
    }

    /// Returns the bodies of the completion requests so far, in order of arrival.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.shared.bodies.lock().unwrap().clone()
    }

    /// Returns the `Authorization` headers so far.
    pub(crate) fn keys(&self) -> Vec<Option<String>> {
        self.shared.keys.lock().unwrap().clone()
    }
}

fn shared(
    models: &[&'static str],
    script: impl Fn(&str, usize) -> Scripted + Send + Sync + 'static,
) -> Arc<Shared> {
    Arc::new(Shared {
        models: models.to_vec(),
        loads: AtomicUsize::new(0),
        script: Box::new(script),
        asked: Mutex::default(),
        bodies: Mutex::default(),
        others: Mutex::default(),
        keys: Mutex::default(),
    })
}

/// Accepts connections whose TLS handshake succeeds.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (connection, address) = self.listener.accept().await.unwrap();
            if let Ok(connection) = self.acceptor.accept(connection).await {
                return (connection, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

async fn models_route(State(shared): State<Arc<Shared>>) -> Response {
    let left = shared.loads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |loads| loads.checked_sub(1));
    if left.is_ok() {
        let body = error(503, "the model is loading").2;
        return (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "0")], body).into_response();
    }
    // Responds like the model list of ntl-server. The model `xval` and names that end in `=xval` have numbers
    // as values. `#FINGERPRINT` and `@DTYPE` may follow the name. `#` alone means that the list has no
    // fingerprint.
    let model = |listed: &&str| {
        let (listed, dtype) = listed.split_once('@').unwrap_or((listed, ""));
        let (listed, fingerprint) = listed.split_once('#').unwrap_or((listed, "00ff"));
        let (id, encoding) =
            listed.split_once('=').unwrap_or((listed, if listed == "xval" { "xval" } else { "text" }));
        let mut model = json!({ "id": id, "object": "model", "number_encoding": encoding, "fingerprint": fingerprint, "encoder_decoder": id != "decoder" });
        if fingerprint.is_empty() {
            model.as_object_mut().unwrap().remove("fingerprint");
        }
        if ["left", "right"].contains(&id) {
            model["truncation_side"] = id.into();
        }
        if !dtype.is_empty() {
            model["dtype"] = dtype.into();
        }
        model
    };
    let data: Vec<Value> = shared.models.iter().map(model).collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

async fn completions_route(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let last = body["messages"].as_array().and_then(|messages| messages.last());
    let prompt = body["prompt"].as_str().or(last.and_then(|message| message["content"].as_str()));
    let prompt = prompt.map_or_else(|| body["prompt"].to_string(), str::to_owned);
    respond(&shared, &headers, body, prompt).await
}

async fn decisions_route(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let text = String::from_utf8(body.to_vec()).unwrap();
    respond(&shared, &headers, serde_json::from_str(&text).unwrap(), text).await
}

/// Notes a request, and returns the response of the script.
async fn respond(shared: &Shared, headers: &HeaderMap, body: Value, prompt: String) -> Response {
    let key = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    shared.keys.lock().unwrap().push(key);
    shared.bodies.lock().unwrap().push(body);
    let before = {
        let mut asked = shared.asked.lock().unwrap();
        let count = asked.entry(prompt.clone()).or_insert(0);
        *count += 1;
        *count - 1
    };
    let Scripted(status, extra, text) = (shared.script)(&prompt, before);
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

/// Returns a token for each character, and 1.
pub(crate) fn ids(text: &str) -> Vec<u32> {
    text.chars().map(u32::from).chain([1]).collect()
}

/// Rejects texts that begin with `HUGE`.
async fn tokenize_route(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let body = noted(&shared, "tokenize", &body);
    if body["prompt"].as_str().unwrap().starts_with("HUGE") {
        return (StatusCode::PAYLOAD_TOO_LARGE, error(413, "too large").2).into_response();
    }
    let mut tokens = ids(body["prompt"].as_str().unwrap());
    // The model with this name adds 2 at the beginning of texts and nothing at the end.
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

/// Rejects targets that begin with `HUGE`.
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

/// A completion with this text and only the fields that the OpenAI API requires.
pub(crate) fn text(text: &str) -> Scripted {
    let body = json!({ "id": "x", "object": "text_completion", "choices": [{ "index": 0, "text": text }] });
    Scripted(200, vec![], body.to_string())
}

/// A completion with a number.
pub(crate) fn number(trimmed_mean: f64, median: f64, mode: f64) -> Scripted {
    let number = json!({
        "value": trimmed_mean, "objective": "mean", "method": "tree", "mean": 1e6, "trimmed_mean": trimmed_mean,
        "median": median, "mode": mode, "std": 1.0,
        "quantiles": [{ "q": 0.05, "value": mode - 4.0 }, { "q": 0.95, "value": mode + 1.0 }],
        "support": [{ "value": mode, "text": "x", "probability": 0.5 }, { "value": median, "text": "y", "probability": 0.25 }],
        "mass": { "closed": 0.75, "invalid": 0.25, "open": 0.0 }, "bounds": { "quantiles": [] },
        "nodes": 3, "forward_passes": 2, "truncated": false, "reason": null
    });
    Scripted(200, vec![], json!({ "choices": [{ "index": 0, "text": "x", "number": number }] }).to_string())
}

/// An error object with this message.
pub(crate) fn error(status: u16, message: &str) -> Scripted {
    let body = json!({ "error": { "message": message, "type": "t", "param": null, "code": null } });
    Scripted(status, vec![], body.to_string())
}

/// Returns the command of the binary, without the environment of the test.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ntl-eval"));
    command.env_clear().args(args);
    command
}

/// Runs the binary without the environment of the test.
pub(crate) fn ntl_eval(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Returns standard output.
pub(crate) fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns standard error.
pub(crate) fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

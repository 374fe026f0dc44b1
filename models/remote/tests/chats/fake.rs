//! An engine in this process that answers chats and reports no probabilities, with faults on request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use serde_json::{Value, json};

/// The reaction of the engine to one request.
#[derive(Clone)]
pub(crate) enum Reply {
    /// A message, and why it ended.
    Answer(Value, &'static str),
    Status(u16, String),
    /// Status 429 with this `Retry-After`.
    Overloaded(&'static str),
    /// The beginning of a response, and then the end of the connection.
    Cut,
    /// Nothing at all.
    Stall,
}

/// A complete answer.
pub(crate) fn says(text: &str) -> Reply {
    Reply::Answer(json!({"role": "assistant", "content": text}), "stop")
}

/// The reply to the request with this number among all requests for answers.
type Script = Box<dyn Fn(usize, &Value) -> Reply + Send + Sync>;

pub(crate) struct Fake {
    pub(crate) url: String,
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    /// Fields that it rejects.
    rejected: &'static [&'static str],
    script: Mutex<Script>,
    arrived: AtomicUsize,
    pub(crate) running: AtomicUsize,
    pub(crate) bodies: Mutex<Vec<Value>>,
    pub(crate) keys: Mutex<Vec<Option<String>>>,
}

/// Counts a request until its handler is dropped.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fake {
    /// An engine that says 1. `rejected`: fields that it rejects.
    pub(crate) async fn start(rejected: &'static [&'static str]) -> Self {
        let shared = Arc::new(Shared {
            rejected,
            script: Mutex::new(Box::new(|_, _| says("1"))),
            arrived: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            bodies: Mutex::default(),
            keys: Mutex::default(),
        });
        let models = json!({"data": [{"id": "gpt", "owned_by": "somebody"}]});
        let router = Router::new()
            .route("/v1/models", get(|| async { Json(models) }))
            .route("/v1/chat/completions", post(chat));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = router.with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, shared }
    }

    /// Sets the replies to the requests from now on.
    pub(crate) fn replies(&self, script: impl Fn(usize, &Value) -> Reply + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap() = Box::new(script);
        self.shared.arrived.store(0, Ordering::SeqCst);
        self.shared.bodies.lock().unwrap().clear();
    }

    /// Number of requests since the replies were set.
    pub(crate) fn arrived(&self) -> usize {
        self.shared.arrived.load(Ordering::SeqCst)
    }
}

async fn chat(State(shared): State<Arc<Shared>>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let key = headers.get(header::AUTHORIZATION).map(|key| key.to_str().unwrap().to_owned());
    shared.keys.lock().unwrap().push(key);
    if let Some(name) = shared.rejected.iter().find(|name| body.get(**name).is_some()) {
        let message = format!("Unsupported parameter: '{name}' is not supported with this model.");
        let error = json!({"error": {"message": message, "type": "invalid_request_error", "param": name, "code": null}});
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    let number = shared.arrived.fetch_add(1, Ordering::SeqCst);
    shared.running.fetch_add(1, Ordering::SeqCst);
    let running = Running(Arc::clone(&shared));
    shared.bodies.lock().unwrap().push(body.clone());
    let reply = shared.script.lock().unwrap()(number, &body);
    match reply {
        Reply::Answer(message, reason) => {
            let usage = json!({
                "prompt_tokens": 10,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 2},
            });
            let choices = json!([{"index": 0, "message": message, "finish_reason": reason}]);
            Json(json!({"object": "chat.completion", "choices": choices, "usage": usage})).into_response()
        }
        Reply::Status(status, body) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Reply::Overloaded(seconds) => {
            let headers = [(header::RETRY_AFTER, seconds)];
            (StatusCode::TOO_MANY_REQUESTS, headers, r#"{"error":"busy"}"#).into_response()
        }
        Reply::Cut => {
            let begin = Ok(Bytes::from_static(b"{\"choices\": ["));
            let parts = stream::iter([begin, Err(std::io::Error::other("cut"))]);
            Body::from_stream(parts).into_response()
        }
        Reply::Stall => {
            std::future::pending::<()>().await;
            drop(running);
            StatusCode::OK.into_response()
        }
    }
}

//! A process that has no file descriptor left, which is a limit of the whole process: this test runs in a
//! separate one.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use ntl_server::config::{Args, Config};
use ntl_server::listen::{ConnectionSettings, Listener};
use ntl_server::metrics::Metrics;
use ntl_server::state::AppState;
use ntl_server::{app, serve};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, Notify, mpsc};
use tower::ServiceExt;

/// The tests of this process share its descriptors.
static DESCRIPTORS: Mutex<()> = Mutex::const_new(());

/// Maximum wait for an event that needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that evicts idle connections immediately if it needs room.
async fn start() -> (SocketAddr, mpsc::Sender<()>) {
    let config = Config::try_from(Args::try_parse_from(["ntl-server"]).unwrap()).unwrap();
    let settings = ConnectionSettings { evict_after: Duration::ZERO, ..config.connections };
    let listener = Listener::new(TcpListener::bind(("127.0.0.1", 0)).await.unwrap(), settings);
    let address = listener.local_addr().unwrap();
    let state = AppState::new(config.http, Arc::new(Metrics::new().unwrap()));
    let (signal, signals) = mpsc::channel(2);
    tokio::spawn(serve::serve(listener, state, signals, Duration::ZERO));
    (address, signal)
}

/// Asks on a connection that stays open; whether there was an answer.
async fn is_answered(connection: &mut TcpStream) -> bool {
    let request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    if connection.write_all(request).await.is_err() {
        return false;
    }
    let mut answer = [0; 512];
    let read = tokio::time::timeout(PATIENCE, connection.read(&mut answer)).await.unwrap();
    read.is_ok_and(|bytes| answer[..bytes].starts_with(b"HTTP/1.1 200"))
}

/// Takes all file descriptors that are left, after lowering their limit.
fn take_descriptors() -> Vec<File> {
    let limit = Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[tokio::test]
async fn without_a_descriptor_idle_clients_make_room_and_all_others_are_answered() {
    let _alone = DESCRIPTORS.lock().await;
    let (address, _signal) = start().await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut connection = TcpStream::connect(address).await.unwrap();
        assert!(is_answered(&mut connection).await);
        idle.push(connection);
    }
    // The side of the clients has its descriptors already.
    let sockets: Vec<TcpSocket> = (0..5).map(|_| TcpSocket::new_v4().unwrap()).collect();
    let mut taken = take_descriptors();
    assert!(taken.len() > 100 && TcpSocket::new_v4().is_err(), "{} were free", taken.len());
    let mut newcomers = Vec::new();
    for socket in sockets {
        let mut newcomer = socket.connect(address).await.unwrap();
        assert!(is_answered(&mut newcomer).await);
        newcomers.push(newcomer);
    }
    for connection in &mut idle {
        let mut rest = Vec::new();
        // A connection that is evicted may be reset, which is an end, too.
        let _ = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut rest)).await.unwrap();
        assert!(rest.is_empty());
    }
    // Five new connections share three slots: the first two were evicted for the last two.
    assert!(!is_answered(&mut newcomers[0]).await && is_answered(&mut newcomers[4]).await);
    taken.clear();
    assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await);
}

/// Starts another engine, which never answers the prompt `HOLD`. It reports when that prompt has arrived.
async fn start_engine() -> (String, Arc<Notify>) {
    let models = json!({"data": [{"id": "toy", "owned_by": "somebody", "max_model_len": 64}]});
    let arrived = Arc::new(Notify::new());
    let router = Router::new()
        .route("/v1/models", get(|| async { Json(models) }))
        .route("/v1/completions", post(complete))
        .with_state(Arc::clone(&arrived));
    let tcp = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", tcp.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(tcp, router).await.unwrap() });
    (url, arrived)
}

async fn complete(State(arrived): State<Arc<Notify>>, Json(body): Json<Value>) -> Json<Value> {
    if body["prompt"] == "HOLD" {
        arrived.notify_one();
        std::future::pending::<()>().await;
    }
    let logprobs = json!({"tokens": ["x"], "token_logprobs": [-0.5], "top_logprobs": [{"x": -0.5}]});
    let choices = json!([{"index": 0, "text": "x", "finish_reason": "length", "logprobs": logprobs}]);
    Json(json!({"choices": choices, "usage": {"prompt_tokens": 7, "completion_tokens": 1}}))
}

async fn send(app: &Router, prompt: &str) -> StatusCode {
    let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(json!({ "prompt": prompt }).to_string())).unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn without_a_descriptor_for_a_connection_an_engine_stays_available() {
    let _alone = DESCRIPTORS.lock().await;
    let (url, arrived) = start_engine().await;
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/tiny/llama-ntl");
    let flags = [format!("--model=toy={url}"), format!("--tokenizer={}", tokenizer.display())];
    let args = ["ntl-server".to_owned(), "--port=0".to_owned()].into_iter().chain(flags);
    let config = Config::try_from(Args::try_parse_from(args).unwrap()).unwrap();
    let state = serve::state(&config).unwrap();
    let listener = serve::listen(&config, None).await.unwrap();
    let (_signal, signals) = mpsc::channel(1);
    tokio::spawn(serve::run(config, state.clone(), listener, signals));
    let loaded = async {
        while !state.models.are_loaded() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, loaded).await.unwrap();
    let app = app::router(state);
    // They take all open connections.
    let mut held = Vec::new();
    for _ in 0..8 {
        let app = app.clone();
        held.push(tokio::spawn(async move { send(&app, "HOLD").await }));
        arrived.notified().await;
    }
    let mut taken = take_descriptors();
    assert_eq!(send(&app, "x").await, StatusCode::SERVICE_UNAVAILABLE);
    let ready = Request::get("/health/ready").body(Body::empty()).unwrap();
    assert_eq!(app.clone().oneshot(ready).await.unwrap().status(), StatusCode::OK);
    assert!(held.iter().all(|request| !request.is_finished()), "requests in flight go on");
    taken.clear();
    assert_eq!(send(&app, "x").await, StatusCode::OK);
}

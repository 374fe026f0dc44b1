//! The memory of request bodies while they are parsed, and of responses until they are read, as counted by
//! the allocator.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{Request, StatusCode, header};
use clap::Parser;
use http_body_util::BodyExt;
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_models::{LoadOptions, load};
use ntl_server::config::{Args, Config};
use ntl_server::metrics::Metrics;
use ntl_server::served::ServedModel;
use ntl_server::settings::HttpSettings;
use ntl_server::state::AppState;
use ntl_server::{app, demo};
use ntl_text::checkpoint::CheckpointFiles;
use peak_alloc::PeakAlloc;
use serde_json::json;
use tokio::sync::Mutex;
use tower::ServiceExt;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Maximum size of all bodies, and maximum memory of all parsed bodies.
const BODIES_BYTES_MAX: usize = 16 << 20;

/// Maximum size of all responses.
const RESPONSES_BYTES_MAX: usize = 16 << 20;

/// Tests run one after the other: the allocator counts the memory of the process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Memory of a request in addition to both, in bytes.
const OTHERS_BYTES: usize = 2 << 20;

/// Beginning and end of bodies, and what they repeat in between.
const SHAPES: [(&str, &str, &str, &str); 14] = [
    ("/v1/completions", r#"{"prompt":["#, "0", "]}"),
    ("/v1/completions", r#"{"prompt":["#, "[0]", "]}"),
    ("/v1/completions", r#"{"prompt":["#, r#""""#, "]}"),
    ("/v1/completions", r#"{"prompt":"x","stop":["#, r#""a""#, "]}"),
    ("/v1/completions", r#"{"prompt":"x","metadata":["#, "[[[[[[0]]]]]]", "]}"),
    ("/v1/completions", r#"{"prompt":"x","metadata":["#, r#"{"":{"":{"":{"":0}}}}"#, "]}"),
    ("/v1/completions", r#"{"prompt":"x","guided_json":["#, "0", "]}"),
    ("/v1/chat/completions", r#"{"messages":[],"chat_template_kwargs":{"x":["#, "[[[0]]]", "]}}"),
    ("/v1/decisions", r#"{"input":"","questions":["#, "{}", "]}"),
    ("/v1/decisions", r#"{"input":["#, "{}", "]}"),
    ("/v1/decisions", r#"{"input":[{"content":["#, "{}", "]}]}"),
    ("/v1/systemone", r#"{"state":["#, "[0]", "]}"),
    ("/v1/systemone", r#"{"questions":{"#, r#""":{}"#, "}}"),
    ("/v1/score", r#"{"items":["#, r#"{"prompt":"","target":""}"#, "]}"),
];

fn server(checkpoint: &CheckpointFiles, responses_bytes_max: usize) -> Router {
    let loaded = load(checkpoint, LoadOptions::default()).unwrap();
    let config = Config::try_from(Args::try_parse_from(["ntl-server"]).unwrap()).unwrap();
    let settings = HttpSettings {
        bodies_bytes_max: BODIES_BYTES_MAX,
        responses_bytes_max,
        response_bytes_max: responses_bytes_max,
        ..config.http
    };
    let metrics = Arc::new(Metrics::new().unwrap());
    let state = AppState::new(settings, Arc::clone(&metrics));
    let limits = EngineLimits::default();
    let budget = CacheBudget::new(limits.cache_bytes_max);
    let (model, _) = ServedModel::start("demo", loaded, limits, &budget, &metrics).unwrap();
    state.models.publish(vec![model]);
    app::router(state)
}

fn request((path, head, unit, tail): (&str, &str, &str, &str), bytes: usize) -> Request<Body> {
    let units = (bytes - head.len() - tail.len()) / (unit.len() + 1);
    let body = format!("{head}{}{tail}", vec![unit; units].join(","));
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(body)).unwrap()
}

/// The statuses of requests that come together, and the most memory that they took.
async fn ask(app: &Router, requests: Vec<Request<Body>>) -> (Vec<StatusCode>, usize) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let asked = requests.into_iter().map(|request| tokio::spawn(app.clone().oneshot(request)));
    let answers = futures::future::join_all(asked).await;
    let statuses = answers.into_iter().map(|answer| answer.unwrap().unwrap().status()).collect();
    (statuses, ALLOCATOR.peak_usage() - before)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_bodies_become_takes_no_more_memory_than_their_budget() {
    let _alone = ALONE.lock().await;
    let app = server(&demo::files().unwrap(), usize::MAX);
    // Compiled at the first use.
    ask(&app, SHAPES.map(|shape| request(shape, 1000)).into()).await;
    let (mut read, mut refused) = (0, 0);
    for shape in SHAPES {
        for bytes in [10_000, 40_000, 160_000, 640_000, 2 << 20] {
            let (statuses, peak) = ask(&app, vec![request(shape, bytes)]).await;
            assert!(peak <= BODIES_BYTES_MAX + bytes + OTHERS_BYTES, "{peak} of {bytes} {shape:?}");
            match statuses[0].as_u16() {
                200 | 400 | 422 => read += 1,
                413 => refused += 1,
                status => panic!("{status} {shape:?}"),
            }
        }
        let (statuses, peak) = ask(&app, (0..64).map(|_| request(shape, 20_000)).collect()).await;
        assert!(peak <= 2 * BODIES_BYTES_MAX + OTHERS_BYTES, "{peak} of 64 times {shape:?}");
        assert!(
            statuses.iter().all(|status| [200, 400, 422].contains(&status.as_u16())),
            "{statuses:?} {shape:?}"
        );
    }
    assert!(read > 20 && refused > 5, "{read} read, {refused} refused");
    // Punctuation inside a text is not a value.
    let text = ("/tokenize", r#"{"prompt":"[[[{{{,,,:::"#, "one, ", r#""}"#);
    assert_eq!(ask(&app, vec![request(text, 2 << 20)]).await.0, [StatusCode::OK]);
}

fn post(path: &str, body: &serde_json::Value) -> Request<Body> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_nothing_reads_take_no_more_memory_than_their_budget_and_less_while_they_are_read() {
    let _alone = ALONE.lock().await;
    let app = server(&demo::files().unwrap(), RESPONSES_BYTES_MAX);
    let body = json!({"prompt": "one two 3 ".repeat(20_000)});
    ask(&app, vec![post("/tokenize", &json!({"prompt": "one two 3"}))]).await;
    let before = ALLOCATOR.current_usage();
    let asked = (0..24).map(|_| tokio::spawn(app.clone().oneshot(post("/tokenize", &body))));
    let answers = futures::future::join_all(asked).await;
    let answers = answers.into_iter().map(|answer| answer.unwrap().unwrap());
    let (mut unread, refused): (Vec<_>, Vec<_>) =
        answers.partition(|answer| answer.status() == StatusCode::OK);
    assert!(refused.iter().all(|answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE));
    assert!(!unread.is_empty() && !refused.is_empty(), "{} {}", unread.len(), refused.len());
    let held = ALLOCATOR.current_usage().saturating_sub(before);
    assert!(held <= RESPONSES_BYTES_MAX + OTHERS_BYTES, "{held}");
    let mut body = unread.pop().unwrap().into_body();
    let length = usize::try_from(body.size_hint().exact().unwrap()).unwrap();
    assert!(length > 1_000_000, "{length}");
    let mut read = 0;
    while read < length / 2 {
        read += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
    }
    let left = ALLOCATOR.current_usage().saturating_sub(before);
    assert!(left + length / 4 < held, "{left} of {held} after {read} of {length}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_response_with_log_probabilities_is_that_of_its_json() {
    let _alone = ALONE.lock().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/data/tiny/llama-ntl");
    let app = server(&CheckpointFiles::folder(Path::new(folder)).unwrap(), RESPONSES_BYTES_MAX);
    let request = |prompts: usize| {
        let prompts = vec!["1 2 3 4 5 6 7 8"; prompts];
        post("/v1/completions", &json!({"prompt": prompts, "prompt_logprobs": 20, "max_tokens": 1}))
    };
    ask(&app, vec![request(1)]).await;
    let (statuses, peak) = ask(&app, vec![request(1024)]).await;
    assert_eq!(statuses, [StatusCode::PAYLOAD_TOO_LARGE]);
    assert!(peak < 4 << 20, "{peak}");
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let answer = app.clone().oneshot(request(256)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let peak = ALLOCATOR.peak_usage().saturating_sub(before);
    let length = usize::try_from(answer.body().size_hint().exact().unwrap()).unwrap();
    assert!(length > 2 << 20, "{length}");
    assert!(peak <= 2 * length + OTHERS_BYTES, "{peak} for {length}");
}

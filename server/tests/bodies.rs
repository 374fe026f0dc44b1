//! The memory that request bodies take while they are parsed, as counted by the allocator.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use clap::Parser;
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_models::{LoadOptions, load};
use ntl_server::config::{Args, Config};
use ntl_server::metrics::Metrics;
use ntl_server::served::ServedModel;
use ntl_server::settings::HttpSettings;
use ntl_server::state::AppState;
use ntl_server::{app, demo};
use peak_alloc::PeakAlloc;
use tower::ServiceExt;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Maximum size of all bodies, and maximum memory of all parsed bodies.
const BODIES_BYTES_MAX: usize = 16 << 20;

/// Memory of a request in addition to both, in bytes.
const OTHERS_BYTES: usize = 2 << 20;

/// Beginning and end of bodies, and what they repeat in between.
const SHAPES: [(&str, &str, &str, &str); 9] = [
    ("/v1/completions", r#"{"prompt":["#, "0", "]}"),
    ("/v1/completions", r#"{"prompt":["#, "[0]", "]}"),
    ("/v1/completions", r#"{"prompt":["#, r#""""#, "]}"),
    ("/v1/completions", r#"{"prompt":"x","stop":["#, r#""a""#, "]}"),
    ("/v1/completions", r#"{"prompt":"x","metadata":["#, "[[[[[[0]]]]]]", "]}"),
    ("/v1/completions", r#"{"prompt":"x","metadata":["#, r#"{"":{"":{"":{"":0}}}}"#, "]}"),
    ("/v1/completions", r#"{"prompt":"x","guided_json":["#, "0", "]}"),
    ("/v1/chat/completions", r#"{"messages":[],"chat_template_kwargs":{"x":["#, "[[[0]]]", "]}}"),
    ("/v1/score", r#"{"items":["#, r#"{"prompt":"","target":""}"#, "]}"),
];

fn server() -> Router {
    let loaded = load(&demo::files().unwrap(), LoadOptions::default()).unwrap();
    let config = Config::try_from(Args::try_parse_from(["ntl-server"]).unwrap()).unwrap();
    let settings = HttpSettings { bodies_bytes_max: BODIES_BYTES_MAX, ..config.http };
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
    let app = server();
    // Compiled at the first use.
    ask(&app, SHAPES.map(|shape| request(shape, 1000)).into()).await;
    let (mut read, mut refused) = (0, 0);
    for shape in SHAPES {
        for bytes in [10_000, 40_000, 160_000, 640_000, 2 << 20] {
            let (statuses, peak) = ask(&app, vec![request(shape, bytes)]).await;
            assert!(peak <= BODIES_BYTES_MAX + bytes + OTHERS_BYTES, "{peak} of {bytes} {shape:?}");
            match statuses[0].as_u16() {
                200 | 400 => read += 1,
                413 => refused += 1,
                status => panic!("{status} {shape:?}"),
            }
        }
        let (statuses, peak) = ask(&app, (0..64).map(|_| request(shape, 20_000)).collect()).await;
        assert!(peak <= 2 * BODIES_BYTES_MAX + OTHERS_BYTES, "{peak} of 64 times {shape:?}");
        assert!(
            statuses.iter().all(|status| [200, 400].contains(&status.as_u16())),
            "{statuses:?} {shape:?}"
        );
    }
    assert!(read > 20 && refused > 5, "{read} read, {refused} refused");
    // Punctuation inside a text is not a value.
    let text = ("/tokenize", r#"{"prompt":"[[[{{{,,,:::"#, "one, ", r#""}"#);
    assert_eq!(ask(&app, vec![request(text, 2 << 20)]).await.0, [StatusCode::OK]);
}

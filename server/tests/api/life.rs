//! From the first byte to the last: clients that leave, servers that end, and what the metrics say then.

use std::time::Duration;

use axum::Router;
use futures::StreamExt;
use ntl_engine::EngineLimits;
use ntl_server::app;
use ntl_server::listen::Listener;
use ntl_server::serve::{self, Ended};
use ntl_server::settings::HttpSettings;
use ntl_server::state::AppState;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::hooked::{Gate, Hooked, gated};
use crate::support::{
    answer_becomes, babbles, becomes, complete, config, get, json_request, loaded, metric_becomes, says,
    scripted, state_of,
};

fn gated_state() -> (AppState, Gate) {
    let (model, gate) = gated(says("1"));
    let models = vec![("scripted", loaded(Box::new(model)))];
    (state_of(models, crate::support::settings(), EngineLimits::default()), gate)
}

/// Nothing is left of requests that are gone.
async fn assert_quiet(app: &Router) {
    for gauge in [
        "ntl_requests_in_flight",
        "ntl_queue_depth{model=\"scripted\"}",
        "ntl_sequences_running{model=\"scripted\"}",
    ] {
        metric_becomes(app, gauge, 0.0).await;
    }
}

/// One request ended because its client left, and nothing of it is left.
async fn one_client_left(app: &Router) {
    let left = "ntl_requests_total{code=\"499\",model=\"scripted\",route=\"/v1/completions\"}";
    metric_becomes(app, left, 1.0).await;
    assert_quiet(app).await;
}

#[tokio::test]
async fn a_client_that_leaves_in_a_stream_frees_its_job() {
    let settings = crate::support::endless();
    let models = vec![("scripted", loaded(Box::new(scripted(babbles()))))];
    let app = app::router(state_of(models, settings, EngineLimits::default()));
    let body = json!({"prompt": ["x", "y"], "n": 2, "max_tokens": 1_u64 << 40, "stream": true});
    let response = app.clone().oneshot(json_request("/v1/completions", &body)).await.unwrap();
    let mut stream = response.into_body().into_data_stream();
    assert!(stream.next().await.unwrap().unwrap().starts_with(b"data: {"));
    metric_becomes(&app, "ntl_sequences_running{model=\"scripted\"}", 4.0).await;
    drop(stream);
    metric_becomes(&app, "ntl_finished_total{model=\"scripted\",reason=\"abort\"}", 4.0).await;
    one_client_left(&app).await;
}

#[tokio::test]
async fn two_hundred_clients_that_leave_are_counted_one_by_one_and_leave_nothing() {
    let settings = crate::support::endless();
    let models = vec![("scripted", loaded(Box::new(scripted(babbles()))))];
    let limits = EngineLimits { running_max: 300, ..EngineLimits::default() };
    let app = app::router(state_of(models, settings, limits));
    let ask = |number: u64| {
        let app = app.clone();
        let stream = number.is_multiple_of(2);
        tokio::spawn(async move {
            complete(&app, json!({"prompt": "x", "max_tokens": 1_u64 << 40, "stream": stream})).await
        })
    };
    let asked: Vec<_> = (0..200).map(ask).collect();
    metric_becomes(&app, "ntl_sequences_running{model=\"scripted\"}", 200.0).await;
    asked.iter().for_each(JoinHandle::abort);
    metric_becomes(&app, "ntl_finished_total{model=\"scripted\",reason=\"abort\"}", 200.0).await;
    assert_quiet(&app).await;
    metric_becomes(
        &app,
        "ntl_requests_total{code=\"499\",model=\"scripted\",route=\"/v1/completions\"}",
        200.0,
    )
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_frees_its_job() {
    let (state, gate) = gated_state();
    let app = app::router(state);
    let asked = {
        let app = app.clone();
        tokio::spawn(async move { complete(&app, json!({"prompt": "x"})).await })
    };
    let gate = gate.step_has_begun().await;
    asked.abort();
    assert!(asked.await.is_err_and(|error| error.is_cancelled()));
    drop(gate);
    metric_becomes(&app, "ntl_finished_total{model=\"scripted\",reason=\"abort\"}", 1.0).await;
    one_client_left(&app).await;
}

#[tokio::test]
async fn the_load_is_what_runs_and_waits_over_all_models() {
    let settings = crate::support::endless();
    let models = ["one", "other"].map(|name| (name, loaded(Box::new(scripted(babbles())))));
    let limits = EngineLimits { running_max: 2, ..EngineLimits::default() };
    let app = app::router(state_of(models.into(), settings, limits));
    let idle = json!({"running": 0, "waiting": 0, "load": 0});
    assert_eq!(get(&app, "/get_load").await.json(), idle);
    let ask = |model: &'static str| {
        let app = app.clone();
        let body = json!({"model": model, "prompt": "x", "n": 2, "max_tokens": 1_u64 << 40});
        tokio::spawn(async move { complete(&app, body).await })
    };
    let asked = ["one", "one", "other"].map(ask);
    answer_becomes(&app, "/get_load", &json!({"running": 4, "waiting": 2, "load": 6})).await;
    assert_eq!(get(&app, "/load").await.json(), json!({"server_load": 3}));
    asked.iter().for_each(JoinHandle::abort);
    answer_becomes(&app, "/get_load", &idle).await;
}

/// A server on the loopback, with the other end of its signals.
async fn start(
    state: &AppState,
    drain_time_max: Duration,
) -> (std::net::SocketAddr, mpsc::Sender<()>, JoinHandle<Ended>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let listener = Listener::new(listener, crate::support::config(&[]).connections);
    let address = listener.local_addr().unwrap();
    let (signal, signals) = mpsc::channel(2);
    (address, signal, tokio::spawn(serve::serve(listener, state.clone(), signals, drain_time_max)))
}

/// The whole answer to a request that closes its connection.
async fn exchange(address: std::net::SocketAddr, request: String) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

fn completion() -> String {
    completion_of("")
}

fn completion_of(model: &str) -> String {
    let body = json!({"prompt": "x", "temperature": 0, "model": model}).to_string();
    let length = body.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn a_signal_lets_running_requests_finish_and_refuses_new_ones() {
    let (state, gate) = gated_state();
    let (address, signal, ended) = start(&state, Duration::from_secs(60)).await;
    let running = tokio::spawn(exchange(address, completion()));
    let gate = gate.step_has_begun().await;
    signal.send(()).await.unwrap();
    let app = app::router(state.clone());
    becomes("503 from /health", async || get(&app, "/health").await.status == 503).await;
    let refused = exchange(address, completion()).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: "), "{refused}");
    drop(gate);
    let answer = running.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"text\":\"1\""), "{answer}");
    assert_eq!(ended.await.unwrap(), Ended::Drained);
}

#[tokio::test]
async fn readiness_goes_before_work_is_refused_and_a_second_signal_ends_at_once() {
    let settings = HttpSettings { drain_delay: Duration::from_secs(3600), ..crate::support::settings() };
    let models = vec![("scripted", loaded(Box::new(scripted(says("1")))))];
    let state = state_of(models, settings, EngineLimits::default());
    let (address, signal, ended) = start(&state, Duration::from_secs(60)).await;
    let app = app::router(state);
    assert_eq!(get(&app, "/health/ready").await.status, 200);
    signal.send(()).await.unwrap();
    while get(&app, "/health/ready").await.status != 503 {
        tokio::task::yield_now().await;
    }
    assert_eq!(get(&app, "/health").await.error()["code"], "draining");
    let answer = exchange(address, completion()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"text\":\"1\""), "{answer}");
    signal.send(()).await.unwrap();
    assert_eq!(ended.await.unwrap(), Ended::Drained);
}

#[tokio::test]
async fn work_is_refused_after_the_drain_delay() {
    let (model, gate) = gated(says("1"));
    let settings = HttpSettings { drain_delay: Duration::from_millis(1), ..crate::support::settings() };
    let models = vec![("scripted", loaded(Box::new(model)))];
    let state = state_of(models, settings, EngineLimits::default());
    let (address, signal, ended) = start(&state, Duration::from_secs(60)).await;
    let running = tokio::spawn(exchange(address, completion()));
    let gate = gate.step_has_begun().await;
    signal.send(()).await.unwrap();
    while !state.lifecycle.is_draining() {
        tokio::task::yield_now().await;
    }
    let refused = exchange(address, completion()).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: "), "{refused}");
    drop(gate);
    assert!(running.await.unwrap().starts_with("HTTP/1.1 200"));
    assert_eq!(ended.await.unwrap(), Ended::Drained);
}

#[tokio::test]
async fn a_second_signal_or_the_drain_time_ends_at_once() {
    for (drain_time_max, signals) in [(Duration::from_secs(60), 2), (Duration::ZERO, 1)] {
        let (state, gate) = gated_state();
        let (address, signal, ended) = start(&state, drain_time_max).await;
        let running = tokio::spawn(exchange(address, completion()));
        let gate = gate.step_has_begun().await;
        for _ in 0..signals {
            signal.send(()).await.unwrap();
        }
        assert_eq!(ended.await.unwrap(), Ended::CutOff(1));
        let counted = |code: u16| {
            format!("ntl_requests_total{{code=\"{code}\",model=\"scripted\",route=\"/v1/completions\"}}")
        };
        let app = app::router(state.clone());
        metric_becomes(&app, &counted(503), 1.0).await;
        metric_becomes(&app, &counted(499), 0.0).await;
        drop(gate);
        // Aborted connections end with the runtime; the client of this one still waits because the runtime of
        // the test continues.
        running.abort();
    }
}

#[tokio::test]
async fn a_server_whose_engine_died_answers_what_others_have_accepted_and_ends() {
    let (model, gate) = gated(says("1"));
    let mortal = loaded(Box::new(Hooked::new(says("1")).mortal()));
    let models = vec![("mortal", mortal), ("other", loaded(Box::new(model)))];
    let state = state_of(models, crate::support::settings(), EngineLimits::default());
    let (address, _signal, ended) = start(&state, Duration::from_secs(60)).await;
    let running = tokio::spawn(exchange(address, completion_of("other")));
    let gate = gate.step_has_begun().await;
    let answer = exchange(address, completion_of("mortal")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    becomes("draining", async || state.lifecycle.is_draining()).await;
    drop(gate);
    let answer = running.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"text\":\"1\""), "{answer}");
    assert_eq!(ended.await.unwrap(), Ended::EngineDied);
}

#[tokio::test]
async fn a_lost_device_fails_its_requests_and_both_probes_with_the_reason_and_ends_the_server() {
    let model = Hooked::new(says("1")).on_a_lost_device();
    let models = vec![("lost", loaded(Box::new(model)))];
    let state = state_of(models, crate::support::settings(), EngineLimits::default());
    let app = app::router(state.clone());
    for route in ["/health/live", "/health/ready"] {
        assert_eq!(get(&app, route).await.status, 200, "{route}");
    }
    let (address, _signal, ended) = start(&state, Duration::from_secs(60)).await;
    let answer = exchange(address, completion_of("lost")).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"device_lost\""), "{answer}");
    assert!(answer.contains("the device cannot be used any more: scripted"), "{answer}");
    becomes("not alive", async || get(&app, "/health/live").await.status == 503).await;
    assert_eq!(get(&app, "/health/ready").await.status, 503);
    assert_eq!(ended.await.unwrap(), Ended::DeviceLost);
}

#[tokio::test]
async fn an_engine_that_dies_after_a_signal_is_still_a_dead_engine() {
    for drain_delay in [Duration::from_secs(3600), Duration::ZERO] {
        let ((mortal, mortal_gate), (other, other_gate)) = (gated(says("1")), gated(says("1")));
        let settings = HttpSettings { drain_delay, ..crate::support::settings() };
        let models = vec![("mortal", loaded(Box::new(mortal.mortal()))), ("other", loaded(Box::new(other)))];
        let state = state_of(models, settings, EngineLimits::default());
        let (address, signal, ended) = start(&state, Duration::from_secs(60)).await;
        let [last, running] =
            ["mortal", "other"].map(|model| tokio::spawn(exchange(address, completion_of(model))));
        let (mortal_gate, other_gate) =
            (mortal_gate.step_has_begun().await, other_gate.step_has_begun().await);
        signal.send(()).await.unwrap();
        let app = app::router(state.clone());
        becomes("not ready", async || get(&app, "/health/ready").await.status == 503).await;
        drop(mortal_gate);
        assert!(last.await.unwrap().starts_with("HTTP/1.1 200"));
        metric_becomes(&app, "ntl_engine_up{model=\"mortal\"}", 0.0).await;
        drop(other_gate);
        assert!(running.await.unwrap().starts_with("HTTP/1.1 200"));
        assert_eq!(ended.await.unwrap(), Ended::EngineDied, "{drain_delay:?}");
    }
}

#[tokio::test]
async fn a_server_comes_up_loads_the_demo_and_ends() {
    let config = config(&["--port", "0"]);
    let listener = serve::listen(&config, None).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (signal, signals) = mpsc::channel(2);
    let state = serve::state(&config).unwrap();
    let ended = tokio::spawn(serve::run(config, state, listener, signals));
    let ready = || {
        exchange(address, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned())
    };
    becomes("200 from /health", async || ready().await.starts_with("HTTP/1.1 200")).await;
    let answer = exchange(address, completion()).await;
    assert!(answer.contains("\"model\":\"t5-ntl-was\""), "{answer}");
    signal.send(()).await.unwrap();
    assert_eq!(ended.await.unwrap().unwrap(), Ended::Drained);
}

#[tokio::test]
async fn what_keeps_a_server_from_starting_is_said() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let error = serve::listen(&config(&["--port", &port]), None).await.err().unwrap();
    assert_eq!(error.to_string(), format!("cannot listen on 127.0.0.1:{port}"));
    for (flags, message, cause) in [
        (
            &["--model", "gone=/no/such/folder"][..],
            "cannot load model `gone`",
            "checkpoint folder /no/such/folder does not exist",
        ),
        (
            &["--adapter", "/no/such/folder"],
            "cannot load adapter `folder`",
            "adapter folder /no/such/folder does not exist",
        ),
    ] {
        let config = config(&[flags, &["--port", "0"]].concat());
        let listener = serve::listen(&config, None).await.unwrap();
        let (_signal, signals) = mpsc::channel(2);
        let state = serve::state(&config).unwrap();
        let error = serve::run(config, state, listener, signals).await.unwrap_err();
        assert_eq!(error.to_string(), message);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with(cause), "{source}");
    }
}

#[tokio::test]
async fn a_bound_on_caches_that_refuses_every_request_keeps_a_server_from_starting() {
    let start = async |bytes_max: &str| {
        let config = config(&["--cache-bytes-max", bytes_max, "--port", "0"]);
        let listener = serve::listen(&config, None).await.unwrap();
        let (signal, signals) = mpsc::channel(2);
        let address = listener.local_addr().unwrap();
        let state = serve::state(&config).unwrap();
        (address, signal, tokio::spawn(serve::run(config, state, listener, signals)))
    };
    let (_, _signal, ended) = start("5").await;
    let error = ended.await.unwrap().unwrap_err().to_string();
    let (message, needed) = error.rsplit_once(" at least ").unwrap();
    assert!(message.contains("5 bytes (--cache-bytes-max)") && message.contains("`t5-ntl-was`"), "{error}");
    let (address, signal, ended) = start(needed).await;
    let ready = || {
        exchange(address, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned())
    };
    becomes("200 from /health", async || ready().await.starts_with("HTTP/1.1 200")).await;
    signal.send(()).await.unwrap();
    assert_eq!(ended.await.unwrap().unwrap(), Ended::Drained);
}

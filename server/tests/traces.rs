//! Traces arrive at a collector. Needs the feature `otel`: `cargo test -p ntl-server --features otel --test
//! traces`.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use clap::Parser;
use ntl_server::app;
use ntl_server::config::{Args, Config};
use ntl_server::metrics::Metrics;
use ntl_server::state::AppState;
use ntl_server::telemetry::{self, LogFormat, TelemetryConfig};
use tower::ServiceExt;

/// The parent that a client names in `traceparent`.
const TRACE: [u8; 16] = [0xaa; 16];

/// A collector that takes one request: its port, and what was sent to it.
fn collector() -> (u16, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        let (head, length) = loop {
            let read = stream.read(&mut buffer).unwrap();
            bytes.extend_from_slice(&buffer[..read]);
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8(bytes.drain(..end + 4).collect()).unwrap().to_ascii_lowercase();
                let length = head.split("content-length: ").nth(1).unwrap();
                break (head.clone(), length.split("\r\n").next().unwrap().parse::<usize>().unwrap());
            }
        };
        while bytes.len() < length {
            let read = stream.read(&mut buffer).unwrap();
            bytes.extend_from_slice(&buffer[..read]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        sender.send((head, bytes)).unwrap();
    });
    (port, receiver)
}

#[test]
fn a_request_becomes_a_span_of_its_callers_trace() {
    let (port, received) = collector();
    let telemetry = telemetry::start(&TelemetryConfig {
        format: LogFormat::Compact,
        filter: Some("info".to_owned()),
        otlp_endpoint: Some(format!("http://127.0.0.1:{port}")),
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = Config::try_from(Args::try_parse_from(["ntl-server"]).unwrap()).unwrap().http;
    runtime.block_on(async {
        let app = app::router(AppState::new(settings, Metrics::new().unwrap().into()));
        let request = Request::get("/v1/models")
            .header("x-request-id", "named-by-the-client")
            .header("traceparent", format!("00-{}-bbbbbbbbbbbbbbbb-01", "aa".repeat(16)));
        let response = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 503);
    });
    telemetry.finish();
    let (head, body) = received.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
    assert!(head.contains("application/x-protobuf"), "{head}");
    let holds = |wanted: &[u8]| body.windows(wanted.len()).any(|window| window == wanted);
    for text in
        ["ntl-server", "GET /v1/models", "http.route", "http.response.status_code", "named-by-the-client"]
    {
        assert!(holds(text.as_bytes()), "{text}");
    }
    assert!(holds(&TRACE), "it belongs to the trace of its caller");
}

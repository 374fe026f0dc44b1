//! Quotas of API keys: requests and tokens per minute and day.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use ntl_core::scripted::Script;
use ntl_engine::EngineLimits;
use ntl_server::app;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{
    Answer, EOS, babbles, call, config, get, json_request, loaded, logits, metric, piece, says, scripted,
    state_with_clock,
};

/// A server whose clock the test sets.
struct Server {
    app: Router,
    now: Arc<Mutex<Instant>>,
    keys: ntl_server::keys::ApiKeys,
}

impl Server {
    fn start(script: Script, flags: &[&str]) -> Self {
        let now = Arc::new(Mutex::new(Instant::now()));
        let clock = Arc::clone(&now);
        let models = vec![("scripted", loaded(Box::new(scripted(script))))];
        let settings = config(flags).http;
        let keys = settings.api_keys.clone();
        let limits = EngineLimits::default();
        let state = state_with_clock(models, settings, limits, Arc::new(move || *clock.lock().unwrap()));
        Self { app: app::router(state), now, keys }
    }

    fn pass(&self, seconds: u64) {
        *self.now.lock().unwrap() += Duration::from_secs(seconds);
    }

    async fn post(&self, key: &str, path: &str, body: &Value) -> Answer {
        call(&self.app, with_key(key, path, body)).await
    }

    async fn complete(&self, key: &str) -> Answer {
        self.post(key, "/v1/completions", &json!({"prompt": "x", "temperature": 0})).await
    }

    /// The headers of a request without tokens.
    async fn remaining_tokens(&self, key: &str) -> u64 {
        let answer = self.post(key, "/tokenize", &json!({"prompt": "x"})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        rate(&answer.headers, "remaining-tokens").parse().unwrap()
    }
}

fn with_key(key: &str, path: &str, body: &Value) -> axum::http::Request<axum::body::Body> {
    let mut request = json_request(path, body);
    request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    request
}

fn rate<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(format!("x-ratelimit-{name}")).map_or("", |value| value.to_str().unwrap())
}

fn keys(folder: &Path, text: &str) -> String {
    let file = folder.join("keys");
    std::fs::write(&file, text).unwrap();
    format!("--api-key-file={}", file.display())
}

#[tokio::test]
async fn requests_beyond_the_quota_of_a_key_are_rejected_until_it_refills() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys(folder.path(), "ann a\nbob b requests-per-minute=none\n");
    let server = Server::start(says("1"), &[&keys, "--requests-per-minute=2"]);
    for left in ["1", "0"] {
        let answer = server.complete("a").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(rate(&answer.headers, "limit-requests"), "2");
        assert_eq!(rate(&answer.headers, "remaining-requests"), left);
    }
    let refused = server.complete("a").await;
    assert_eq!((refused.status.as_u16(), refused.header(header::RETRY_AFTER)), (429, Some("30")));
    assert_eq!(rate(&refused.headers, "reset-requests"), "1m0s");
    assert_eq!(rate(&refused.headers, "limit-tokens"), "");
    let error = refused.error();
    assert_eq!((&error["code"], &error["type"]), (&json!("rate_limit_exceeded"), &json!("requests")));
    let message = "the quota of this API key is 2 requests per minute, and it is used up; try again in 30 s";
    assert_eq!(error["message"], message);
    // Nothing of the request is read.
    let wrong = server.post("a", "/v1/systemone", &json!({"wrong": 1})).await;
    assert_eq!((wrong.status.as_u16(), &wrong.json()["detail"]["message"]), (429, &json!(message)));
    assert_eq!(get(&server.app, "/v1/models").await.status, 401);
    let rejected = "ntl_requests_rejected_total{reason=\"rate_limit_exceeded\"}";
    assert_eq!(metric(&server.app, rejected).await as u64, 2);
    for _ in 0..5 {
        let other = server.complete("b").await;
        assert_eq!((other.status.as_u16(), rate(&other.headers, "limit-requests")), (200, ""));
    }
    server.pass(29);
    assert_eq!(server.complete("a").await.header(header::RETRY_AFTER), Some("1"));
    server.pass(1);
    assert_eq!(server.complete("a").await.status, 200);
    assert_eq!(server.complete("a").await.status, 429);
}

#[tokio::test]
async fn reading_routes_and_requests_without_a_key_count_nothing() {
    let server = Server::start(says("1"), &["--api-key=a", "--requests-per-day=1"]);
    for path in ["/v1/models", "/tokenizer_info"] {
        let mut request = axum::http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, "Bearer a".parse().unwrap());
        assert_eq!(call(&server.app, request).await.status, 200, "{path}");
    }
    assert_eq!(server.complete("wrong").await.status, 401);
    assert_eq!(server.complete("a").await.status, 200);
    assert_eq!(server.complete("a").await.status, 429);
}

#[tokio::test]
async fn every_route_counts_the_tokens_that_the_metrics_have() {
    let (four, five, letter) = (piece("4"), piece("5"), piece("x"));
    let script: Script = Box::new(move |_, path| {
        let first = [(four, 0.6), (five, 0.3), (letter, 0.1)];
        Ok(logits(if path.is_empty() { &first } else { &[(EOS, 1.0)] }))
    });
    let server = Server::start(script, &["--api-key=a", "--tokens-per-day=100000"]);
    let number = json!({"prompt": "how many?", "number": true});
    let items = json!([{"prompt": "how many?", "target": "4"}]);
    let labels = json!({"query": "x", "items": ["a", "b"], "label_token_ids": [four, five]});
    let question =
        json!([{"type": "number", "instructions": "How good?", "minimum": 4, "maximum": 5, "step": 1}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": ["x", "y z"], "n": 3})),
        ("/v1/completions", json!({"prompt": "x", "stream": true})),
        ("/v1/completions", number.clone()),
        ("/v1/completions", json!({"prompt": "x", "use_beam_search": true, "beam_width": 2})),
        ("/v1/responses", json!({"input": "x"})),
        ("/v1/score", json!({ "items": items })),
        ("/v1/score", labels.clone()),
        ("/generative_scoring", labels),
        ("/rerank", json!({"query": "x", "documents": ["a", "b"]})),
        ("/v1/decisions", json!({"input": "x", "questions": question})),
    ] {
        let counted = async || {
            let mut tokens = 0;
            for kind in ["prompt", "completion"] {
                let series = format!("ntl_key_tokens_total{{key=\"#1\",kind=\"{kind}\",model=\"scripted\"}}");
                tokens += metric(&server.app, &series).await as u64;
            }
            (tokens, server.remaining_tokens("a").await)
        };
        let before = counted().await;
        let answer = server.post("a", path, &body).await;
        if path == "/v1/responses" {
            assert_eq!(answer.status, 400, "the model has no chats");
            assert_eq!(counted().await, before);
            continue;
        }
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text);
        let after = counted().await;
        assert!(after.0 > before.0, "{path} {body}");
        assert_eq!(after.0 - before.0, before.1 - after.1, "{path} {body}");
    }
}

#[tokio::test]
async fn a_running_request_never_fails_and_the_next_one_waits() {
    let server = Server::start(says("1 2 3"), &["--api-key=a", "--tokens-per-minute=1"]);
    let body = json!({"prompt": "x", "temperature": 0, "stream": true});
    let answer = server.post("a", "/v1/completions", &body).await;
    assert_eq!(answer.status, 200);
    let text: String = answer
        .chunks()
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(text, "1 2 3");
    let used = metric(&server.app, "ntl_prompt_tokens_total{model=\"scripted\"}").await
        + metric(&server.app, "ntl_generation_tokens_total{model=\"scripted\"}").await;
    let refused = server.complete("a").await;
    let wait = format!("{}", used as u64 * 60);
    assert_eq!((refused.status.as_u16(), refused.header(header::RETRY_AFTER)), (429, Some(&*wait)));
    assert_eq!(refused.error()["type"], "tokens");
    server.pass(used as u64 * 60);
    assert_eq!(server.complete("a").await.status, 200);
}

#[tokio::test]
async fn a_cancelled_text_counts_its_prompt_and_what_was_written() {
    let server = Server::start(babbles(), &["--api-key=a", "--tokens-per-day=1000000"]);
    let body = json!({"prompt": ["x", "x"], "n": 2, "max_tokens": 4000, "stream": true});
    let prompts = {
        let before = server.remaining_tokens("a").await;
        let none = json!({"prompt": ["x", "x"], "n": 2, "max_tokens": 0});
        assert_eq!(server.post("a", "/v1/completions", &none).await.status, 200);
        before - server.remaining_tokens("a").await
    };
    let before = server.remaining_tokens("a").await;
    let response = server.app.clone().oneshot(with_key("a", "/v1/completions", &body)).await.unwrap();
    let mut stream = response.into_body();
    let mut read = 0;
    while read < 50 {
        let frame = stream.frame().await.unwrap().unwrap().into_data().unwrap();
        read += std::str::from_utf8(&frame).unwrap().matches("\"text\":\"7\"").count() as u64;
    }
    drop(stream);
    let used = before - server.remaining_tokens("a").await;
    // The last event may be read but not sent.
    assert!((prompts + read..=prompts + read + 4).contains(&used), "{used} of {prompts} and {read}");
    let finished = "ntl_generation_tokens_total{model=\"scripted\"}";
    assert_eq!(metric(&server.app, finished).await as u64, 0, "metrics count finished texts");
}

#[tokio::test]
async fn changed_limits_in_the_file_of_keys_apply_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let flag = keys(folder.path(), "ann a requests-per-day=1\n");
    let server = Server::start(says("1"), &[&flag]);
    assert_eq!(server.complete("a").await.status, 200);
    assert_eq!(server.complete("a").await.status, 429);
    keys(folder.path(), "ann a requests-per-day=2\n");
    server.keys.reload();
    assert_eq!(server.complete("a").await.status, 200);
    assert_eq!(server.complete("a").await.status, 429);
    keys(folder.path(), "ann a requests-per-day=0\n");
    server.keys.reload();
    assert_eq!(server.complete("a").await.status, 429, "a file that cannot be used changes nothing");
    keys(folder.path(), "ann a\n");
    server.keys.reload();
    assert_eq!(server.complete("a").await.status, 200);
}

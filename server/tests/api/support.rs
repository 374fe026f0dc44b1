//! A server over a scripted model with the tokenizer of the tests' checkpoint, called without a network.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use clap::Parser;
use http_body_util::BodyExt;
use ntl_core::contract::BatchModel;
use ntl_core::scripted::{Script, ScriptedModel};
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_models::LoadedModel;
use ntl_server::app;
use ntl_server::config::{Args, Config};
use ntl_server::metrics::Metrics;
use ntl_server::quota::Clock;
use ntl_server::served::ServedModel;
use ntl_server::settings::HttpSettings;
use ntl_server::state::AppState;
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;
use serde_json::{Value, json};
use tower::ServiceExt;

/// Ends a sequence in the vocabulary of the tests' checkpoint.
pub(crate) const EOS: u32 = 1;

/// Maximum wait for an event that needs milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A T5 of 0.6 million parameters, made by the paper's own classes.
pub(crate) fn checkpoint() -> CheckpointFiles {
    let archive = include_bytes!("../../demo/t5-ntl-was.tar.gz");
    CheckpointFiles::archive("t5-ntl-was", archive).unwrap()
}

/// Its tokenizer.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let open = || Arc::new(Tokenizer::open(&checkpoint()).unwrap());
    Arc::clone(TOKENIZER.get_or_init(open))
}

/// Ids of a text without an end of sequence.
pub(crate) fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text, false).unwrap()
}

/// The id of one piece, such as a digit.
pub(crate) fn piece(name: &str) -> u32 {
    tokenizer().token_id(name).unwrap()
}

/// Logits of a distribution; all other ids have no probability.
pub(crate) fn logits(distribution: &[(u32, f64)]) -> Vec<f32> {
    let mut logits = vec![f32::NEG_INFINITY; tokenizer().len()];
    for &(id, probability) in distribution {
        logits[id as usize] = probability.ln() as f32;
    }
    logits
}

/// Writes the same text after every prompt: each token with probability 0.9, otherwise an `x`.
pub(crate) fn says(text: &str) -> Script {
    let mut tokens = ids(text);
    tokens.push(EOS);
    let other = piece("x");
    Box::new(move |_, path| Ok(logits(&[(tokens[path.len().min(tokens.len() - 1)], 0.9), (other, 0.1)])))
}

/// Writes one digit forever.
pub(crate) fn babbles() -> Script {
    let digit = piece("7");
    Box::new(move |_, _| Ok(logits(&[(digit, 1.0)])))
}

/// A model under a scripted one's name.
pub(crate) fn scripted(script: Script) -> ScriptedModel {
    ScriptedModel::new(tokenizer().len(), script).with_info(|info| info.parameters = 42)
}

/// Any model with the tokenizer of the tests' checkpoint.
pub(crate) fn loaded(model: Box<dyn BatchModel>) -> LoadedModel {
    let tokenizer = tokenizer();
    let vocabulary = ntl_text::vocabulary(&tokenizer, model.info());
    LoadedModel { model, tokenizer, vocabulary, adapters: None }
}

/// A state that serves these models.
pub(crate) fn state_of(
    models: Vec<(&str, LoadedModel)>,
    settings: HttpSettings,
    limits: EngineLimits,
) -> AppState {
    state_with_clock(models, settings, limits, Arc::new(Instant::now))
}

/// The same with another clock for the quotas of keys.
pub(crate) fn state_with_clock(
    models: Vec<(&str, LoadedModel)>,
    settings: HttpSettings,
    limits: EngineLimits,
    clock: Clock,
) -> AppState {
    let metrics = Arc::new(Metrics::new().unwrap());
    let state = AppState::with_clock(settings, Arc::clone(&metrics), clock);
    let budget = CacheBudget::new(limits.cache_bytes_max);
    let start = |(name, model)| ServedModel::start(name, model, limits, &budget, &metrics).unwrap().0;
    state.models.publish(models.into_iter().map(start).collect());
    state
}

/// A state without models, in whose quotas no time passes.
pub(crate) fn frozen_state(config: &Config) -> AppState {
    let now = Instant::now();
    let metrics = Arc::new(Metrics::new().unwrap());
    AppState::with_clock(config.http.clone(), metrics, Arc::new(move || now))
}

/// The configuration of these flags.
pub(crate) fn config(flags: &[&str]) -> Config {
    Config::try_from(Args::try_parse_from([&["ntl-server"], flags].concat()).unwrap()).unwrap()
}

/// The settings of a server without flags.
pub(crate) fn settings() -> HttpSettings {
    config(&[]).http
}

/// Settings without a limit on the lengths of texts.
pub(crate) fn endless() -> HttpSettings {
    let bytes_max = usize::MAX;
    let (response_bytes_max, responses_bytes_max) = (bytes_max, bytes_max);
    HttpSettings { output_tokens_max: 1 << 40, response_bytes_max, responses_bytes_max, ..settings() }
}

/// A server of one scripted model called `scripted`.
pub(crate) fn server(script: Script) -> Router {
    let models = vec![("scripted", loaded(Box::new(scripted(script))))];
    app::router(state_of(models, settings(), EngineLimits::default()))
}

/// An answer that was read to its end.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The data of all server-sent events.
    pub(crate) fn events(&self) -> Vec<String> {
        let events = self.text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        events.map(str::to_owned).collect()
    }

    /// All chunks of a stream, which must end with `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The error, after checking that the body is one.
    pub(crate) fn error(&self) -> Value {
        let body = self.json();
        let mut keys: Vec<&String> = body["error"].as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(keys, ["code", "message", "param", "type"], "{body}");
        body["error"].clone()
    }

    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A request with a JSON body.
pub(crate) fn json_request(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

pub(crate) async fn call(app: &Router, request: Request<Body>) -> Answer {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

pub(crate) async fn post(app: &Router, path: &str, body: Value) -> Answer {
    call(app, json_request(path, &body)).await
}

/// `POST /v1/completions`.
pub(crate) async fn complete(app: &Router, body: Value) -> Answer {
    post(app, "/v1/completions", body).await
}

pub(crate) async fn get(app: &Router, path: &str) -> Answer {
    let request = Request::builder().method(Method::GET).uri(path).body(Body::empty()).unwrap();
    call(app, request).await
}

/// The value of one series in `/metrics`, 0 where it is not there.
pub(crate) async fn metric(app: &Router, series: &str) -> f64 {
    let text = get(app, "/metrics").await.text;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

/// 4 with 0.6, 5 with 0.3; a letter with 0.1, which is not a number.
pub(crate) fn four_or_five() -> Router {
    let four = piece("4");
    let five = piece("5");
    let letter = piece("x");
    server(Box::new(move |_, path| {
        Ok(if path.is_empty() {
            logits(&[(four, 0.6), (five, 0.3), (letter, 0.1)])
        } else {
            logits(&[(EOS, 1.0)])
        })
    }))
}

/// Text and `number` object of an answer to one prompt.
pub(crate) async fn number(app: &Router, options: Value) -> (String, Value) {
    let answer = complete(app, json!({"prompt": "x", "number": options})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = answer.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    (choice["text"].as_str().unwrap().to_owned(), choice["number"].clone())
}

/// Returns whether a number of a response is about `want`.
pub(crate) fn close(got: &Value, want: f64) -> bool {
    (got.as_f64().unwrap() - want).abs() < 1e-6
}

/// Waits until something holds that other tasks or threads bring about.
pub(crate) async fn becomes(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a series has a value.
pub(crate) async fn metric_becomes(app: &Router, series: &str, want: f64) {
    becomes(&format!("{series} {want}"), async || (metric(app, series).await - want).abs() < 1e-9).await;
}

/// Waits until a JSON route answers this.
pub(crate) async fn answer_becomes(app: &Router, path: &str, want: &Value) {
    let started = Instant::now();
    loop {
        let body = get(app, path).await.json();
        if body == *want {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{path} stays {body} instead of {want}");
        tokio::task::yield_now().await;
    }
}

/// Leaves out of a body what differs from call to call, and puts its fields in the order of their names.
pub(crate) fn without_names(mut body: Value) -> Value {
    body.sort_all_objects();
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"), "{body}");
    assert!(body["created"].as_u64().unwrap() > 1_600_000_000, "{body}");
    body["id"] = "[id]".into();
    body["created"] = "[created]".into();
    body
}

//! Whom requests go to: a server, or an engine in this process, which shows what HTTP costs.

use std::sync::Arc;
use std::time::Instant;

use ntl_core::engine::{EngineError, Event, Job, NumberJob, NumberMethod, Request, Terminator, TextJob};
use ntl_core::numbers::GrammarLimits;
use ntl_engine::Engine;
use ntl_models::LoadedModel;
use ntl_models::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::sse::Events;
use super::{Timing, Workload};
use crate::engine;

/// Why a target cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The HTTP client cannot be made.
    #[error("no HTTP client")]
    Client(#[source] reqwest::Error),
    /// The operating system gives no thread.
    #[error("no thread for the engine")]
    Thread(#[source] std::io::Error),
}

/// Whom requests go to.
#[derive(Clone)]
pub enum Target {
    /// A server.
    Http {
        /// Keeps connections open.
        client: reqwest::Client,
        /// URL of the completions route.
        url: String,
        /// Name of the model, where one has to be named.
        model: Option<String>,
    },
    /// An engine in this process.
    InProcess {
        /// The engine.
        engine: Engine,
        /// The tokenizer of its model.
        tokenizer: Arc<Tokenizer>,
    },
}

impl Target {
    /// A server, by its base URL with or without `/v1`.
    ///
    /// # Errors
    /// When no client can be made.
    pub fn http(endpoint: &str, model: Option<String>) -> Result<Self, TargetError> {
        let base = endpoint.trim_end_matches('/').trim_end_matches("/v1");
        let client = reqwest::Client::builder()
            .tcp_nodelay(true)
            .pool_max_idle_per_host(usize::MAX)
            .build()
            .map_err(TargetError::Client)?;
        Ok(Self::Http { client, url: format!("{base}/v1/completions"), model })
    }

    /// A loaded model, in this process.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn in_process(loaded: LoadedModel) -> Result<Self, TargetError> {
        let tokenizer = Arc::clone(&loaded.tokenizer);
        Ok(Self::InProcess { engine: engine(loaded).map_err(TargetError::Thread)?, tokenizer })
    }

    /// How tables call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::InProcess { .. } => "in process",
        }
    }

    /// Asks the n-th request of a workload, which was due at `due`, and waits for its end.
    pub async fn ask(&self, workload: &Workload, request: usize, due: Instant) -> Timing {
        let mut timing = Timing::default();
        let mut clock = Clock { due, last: None };
        let asked = match self {
            Self::Http { client, url, model } => {
                let body = body(workload, request, model.as_deref());
                over_http(client.post(url).json(&body), &mut timing, &mut clock).await
            }
            Self::InProcess { engine, tokenizer } => {
                let number = workload.wants_number(request);
                let job = job(tokenizer, workload.prompt(request), number.then_some(()), workload.max_tokens);
                in_process(engine, job, &mut timing, &mut clock).await
            }
        };
        timing.failure = asked.err();
        timing.total = due.elapsed();
        timing
    }
}

/// Tells first pieces from later ones.
struct Clock {
    due: Instant,
    last: Option<Instant>,
}

impl Clock {
    fn piece(&mut self, timing: &mut Timing) {
        let now = Instant::now();
        match self.last.replace(now) {
            None => timing.first = Some(now - self.due),
            Some(last) => timing.gaps.push(now - last),
        }
    }
}

fn body(workload: &Workload, request: usize, model: Option<&str>) -> Value {
    let mut body = json!({ "prompt": workload.prompt(request) });
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    if workload.wants_number(request) {
        body["number"] = json!({});
    } else {
        body["max_tokens"] = json!(workload.max_tokens);
        body["temperature"] = json!(0);
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

async fn over_http(
    request: reqwest::RequestBuilder,
    timing: &mut Timing,
    clock: &mut Clock,
) -> Result<(), String> {
    let mut response = request.send().await.map_err(|error| failure(&error))?;
    let status = response.status();
    if !status.is_success() {
        return Err(format!("status {}", status.as_u16()));
    }
    let streamed = response.headers().get("content-type").is_some_and(|value| value == "text/event-stream");
    let (mut events, mut whole) = (Events::default(), Vec::new());
    while let Some(bytes) = response.chunk().await.map_err(|error| failure(&error))? {
        if !streamed {
            whole.extend_from_slice(&bytes);
            continue;
        }
        for data in events.push(&bytes) {
            take(&data, timing, clock)?;
        }
    }
    if streamed { Ok(()) } else { take(&String::from_utf8_lossy(&whole), timing, clock) }
}

/// One chunk of an answer, or all of it.
fn take(data: &str, timing: &mut Timing, clock: &mut Clock) -> Result<(), String> {
    if data == "[DONE]" {
        return Ok(());
    }
    let chunk: Value = serde_json::from_str(data).map_err(|_| "no JSON".to_owned())?;
    if let Some(error) = chunk.get("error") {
        return Err(error["message"].as_str().unwrap_or("error").to_owned());
    }
    if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
        timing.tokens = tokens;
    }
    if chunk["choices"].as_array().is_some_and(|choices| !choices.is_empty()) {
        clock.piece(timing);
    }
    Ok(())
}

/// A failure in words that do not differ from request to request.
fn failure(error: &reqwest::Error) -> String {
    if error.is_connect() { "not reachable".to_owned() } else { "connection broke".to_owned() }
}

fn job(tokenizer: &Tokenizer, prompt: &str, number: Option<()>, max_tokens: usize) -> Result<Job, String> {
    let prompt = tokenizer.encode_prompt(prompt, true).map_err(|error| error.to_string())?;
    let request = match number {
        None => Request::Text(TextJob { max_tokens, ..TextJob::default() }),
        Some(()) => Request::Number(NumberJob {
            method: NumberMethod::Tree { tolerance: 1e-3, nodes_max: 4096, precision: None },
            limits: GrammarLimits::default(),
            terminator: Terminator::Any,
            range: None,
            after: None,
        }),
    };
    Ok(Job::new(prompt, request))
}

async fn in_process(
    engine: &Engine,
    job: Result<Job, String>,
    timing: &mut Timing,
    clock: &mut Clock,
) -> Result<(), String> {
    let mut events = engine.submit(job?).map_err(|error: EngineError| error.to_string())?;
    while let Some(event) = events.next().await {
        match event {
            Event::Failed(error) => return Err(error.to_string()),
            Event::Finished { tokens, .. } => timing.tokens = tokens as u64,
            Event::Number(outcome) => {
                timing.tokens = outcome.nodes as u64;
                clock.piece(timing);
            }
            _ => clock.piece(timing),
        }
    }
    Ok(())
}

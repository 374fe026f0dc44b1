//! The target of requests: a server, or an engine in this process, for comparison without HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ntl_core::contract::{Event, Job, Request, TextJob};
use ntl_engine::Engine;
use ntl_models::LoadedModel;
use ntl_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::sse::Events;
use super::workload::Workload;
use crate::setup::{engine, number_request, tree};

/// Timing of one request; all times count from when it was due.
#[derive(Debug, Clone, Default)]
pub struct Timing {
    /// Time to the first chunk of the answer.
    pub first: Option<Duration>,
    /// Times between consecutive chunks.
    pub gaps: Vec<Duration>,
    pub total: Duration,
    /// Token count as reported by the server.
    pub tokens: u64,
    /// Reason why the request failed.
    pub failure: Option<String>,
}

#[derive(Clone)]
pub enum Target {
    /// Requests omit `model` if the server has only one.
    Http {
        client: reqwest::Client,
        completions_url: String,
        model: Option<String>,
    },
    InProcess {
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
    },
}

/// Approximate maximum number of bytes of an error body that are read and shown.
const ERROR_BYTES_MAX: usize = 64 << 10;
const MESSAGE_CHARS_MAX: usize = 200;

impl Target {
    /// `endpoint` is the server's base URL with or without `/v1`.
    pub fn http(endpoint: &str, model: Option<String>) -> reqwest::Result<Self> {
        let base = endpoint.trim_end_matches('/').trim_end_matches("/v1");
        let client =
            reqwest::Client::builder().tcp_nodelay(true).pool_max_idle_per_host(usize::MAX).build()?;
        Ok(Self::Http { client, completions_url: format!("{base}/v1/completions"), model })
    }

    pub fn in_process(loaded: LoadedModel) -> std::io::Result<Self> {
        let tokenizer = Arc::clone(&loaded.tokenizer);
        Ok(Self::InProcess { engine: engine(loaded)?, tokenizer })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::InProcess { .. } => "in process",
        }
    }

    /// Sends request number `request` of the workload, which was due at `due`, and waits until its answer
    /// ends.
    pub async fn ask(&self, workload: &Workload, request: usize, due: Instant) -> Timing {
        let mut recorder = Recorder { timing: Timing::default(), due, last: None };
        let outcome = match self {
            Self::Http { client, completions_url, model } => {
                let body = body(workload, request, model.as_deref());
                over_http(client.post(completions_url).json(&body), &mut recorder).await
            }
            Self::InProcess { engine, tokenizer } => {
                in_process(engine, tokenizer, workload, request, &mut recorder).await
            }
        };
        Timing { failure: outcome.err(), total: due.elapsed(), ..recorder.timing }
    }
}

struct Recorder {
    timing: Timing,
    due: Instant,
    last: Option<Instant>,
}

impl Recorder {
    fn piece(&mut self) {
        let now = Instant::now();
        match self.last.replace(now) {
            None => self.timing.first = Some(now - self.due),
            Some(last) => self.timing.gaps.push(now - last),
        }
    }

    /// Handles one chunk of a stream, or a complete answer.
    fn chunk(&mut self, data: &str) -> Result<(), String> {
        if data == "[DONE]" {
            return Ok(());
        }
        let chunk: Value = serde_json::from_str(data).map_err(|_| "no JSON".to_owned())?;
        if let Some(error) = chunk.get("error") {
            return Err(error["message"].as_str().unwrap_or("error").to_owned());
        }
        if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
            self.timing.tokens = tokens;
        }
        if chunk["choices"].as_array().is_some_and(|choices| !choices.is_empty()) {
            self.piece();
        }
        Ok(())
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
        if workload.stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({ "include_usage": true });
        }
    }
    body
}

async fn over_http(request: reqwest::RequestBuilder, recorder: &mut Recorder) -> Result<(), String> {
    let mut response = request.send().await.map_err(|error| failure(&error))?;
    let status = response.status();
    if !status.is_success() {
        let message = message(&mut response).await;
        return Err(format!(
            "status {}{}{message}",
            status.as_u16(),
            if message.is_empty() { "" } else { ": " }
        ));
    }
    let streamed = response.headers().get("content-type").is_some_and(|value| value == "text/event-stream");
    if !streamed {
        let answer = response.text().await.map_err(|error| failure(&error))?;
        return recorder.chunk(&answer);
    }
    let mut events = Events::default();
    while let Some(bytes) = response.chunk().await.map_err(|error| failure(&error))? {
        for data in events.push(&bytes) {
            recorder.chunk(&data)?;
        }
    }
    Ok(())
}

/// Returns the server's error message: the message of an OpenAI-style body, otherwise the beginning of
/// its text.
async fn message(response: &mut reqwest::Response) -> String {
    let mut body = Vec::new();
    while body.len() < ERROR_BYTES_MAX
        && let Ok(Some(bytes)) = response.chunk().await
    {
        body.extend_from_slice(&bytes);
    }
    let parsed: Option<Value> = serde_json::from_slice(&body).ok();
    let named = parsed.as_ref().and_then(|body| body["error"]["message"].as_str());
    let text = named.map_or_else(|| String::from_utf8_lossy(&body).into_owned(), str::to_owned);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MESSAGE_CHARS_MAX).collect()
}

/// Returns the same message for the same cause, so that failures can be grouped by it.
fn failure(error: &reqwest::Error) -> String {
    if error.is_connect() { "not reachable".to_owned() } else { "connection broke".to_owned() }
}

async fn in_process(
    engine: &Engine,
    tokenizer: &Tokenizer,
    workload: &Workload,
    request: usize,
    recorder: &mut Recorder,
) -> Result<(), String> {
    let prompt =
        tokenizer.encode_prompt(workload.prompt(request), true).map_err(|error| error.to_string())?;
    let request = if workload.wants_number(request) {
        number_request(tree(1e-3))
    } else {
        Request::Text(TextJob { max_tokens: workload.max_tokens, ..TextJob::default() })
    };
    let mut events = engine.submit(Job::new(prompt, request)).map_err(|error| error.to_string())?;
    while let Some(event) = events.next().await {
        match event {
            Event::Failed(error) => return Err(error.to_string()),
            Event::Finished { tokens, .. } => recorder.timing.tokens = tokens as u64,
            Event::Number(outcome) => {
                recorder.timing.tokens = outcome.nodes as u64;
                recorder.piece();
            }
            _ => recorder.piece(),
        }
    }
    Ok(())
}

//! HTTP client for one or more OpenAI-style servers.
//!
//! The client sends a request to the available server with the fewest requests in flight. After 429, 502,
//! 503 or a broken connection it sends the request to the other servers immediately. If they fail too, it
//! retries after growing random pauses, or after the pause that `Retry-After` names. It retries twice after
//! the other statuses that OpenAI's SDK retries (408, 409 and all from 500 on), and after no other error.
//!
//! The timeout counts from the last byte of a response. A server that exceeds it is either unreachable or
//! slow, and a probe of `/v1/models` shows which. A slow server does not get the same request again. If the
//! text of the response can be streamed, it gets the request for a stream, once. Chats are streams from the
//! beginning, other texts once a response has exceeded the timeout: streams cost servers time.
//!
//! An *outage* is the time since the first failed request that no response to any request has followed.
//! Retries continue until the outage has lasted `unreachable_max`. While the servers answer other requests, a
//! request is retried `retries_max` times.
//!
//! Servers are not trusted: bodies have a limit, and redirects to another server are not followed, because
//! they would send the prompts there.
//!
//! Every response that names the fingerprint of its model must name the same one. `model_check` also compares
//! the model itself from time to time.

mod error;
mod event_stream;
mod model_check;
mod pool;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ntl_api::{FINGERPRINT_HEADER, TruncationSide};
use ntl_common::retry_after::retry_after;
use ntl_common::trust;
use reqwest::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::OutputError;
use crate::format::shortened;
use crate::settings::base_url::BaseUrl;

pub use self::error::ClientError;
use self::event_stream::StreamError;
use self::model_check::RunModel;
use self::pool::EndpointPool;

/// Maximum size of the body of a response, in bytes. A number with 1,000 values needs less than 200 kB.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Maximum number of bytes that are read of an error's body.
const ERROR_BYTES_MAX: usize = 64 << 10;

const REDIRECTS_MAX: usize = 5;

/// Maximum number of retries after a status that does not mean that the endpoint is unavailable, as in
/// OpenAI's SDK.
const STATUS_RETRIES_MAX: u32 = 2;

/// A response that arrives slowly takes at most this many timeouts.
const TIMEOUTS_MAX: u32 = 60;

/// How long a probe of `/v1/models` may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Maximum number of retries of one request while the servers answer others.
    pub retries_max: u32,
    /// The first pause; each further one is twice as long.
    pub pause: Duration,
    /// Maximum pause that the client chooses itself.
    pub pause_max: Duration,
    /// Maximum length of an outage.
    pub unreachable_max: Duration,
}

impl RetryPolicy {
    pub fn new(unreachable_max: Duration) -> Self {
        Self {
            retries_max: 4,
            pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(8),
            unreachable_max,
        }
    }

    /// Returns the pause before retry number `retry`, counted from 0. Half of it is random, so that clients
    /// do not return together. The pause is never shorter than `retry_after`, and equals it for the first
    /// `retries_max` retries.
    fn pause_after(&self, retry: u32, retry_after: Option<Duration>) -> Duration {
        let (asked, doublings) = match retry_after {
            Some(asked) if retry < self.retries_max => return asked,
            Some(asked) => (asked, retry - self.retries_max),
            None => (Duration::ZERO, retry),
        };
        let grown = self.pause.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
        // The operating system seeds `RandomState`, which is random enough for a pause.
        let random = RandomState::new().hash_one(retry) as f64 / u64::MAX as f64;
        asked.max(grown.min(self.pause_max).mul_f64(0.5 + random / 2.0))
    }
}

#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// At least one endpoint.
    pub endpoints: Vec<BaseUrl>,
    pub api_key: Option<String>,
    /// Maximum time without a byte of a response.
    pub timeout: Duration,
    pub retry: RetryPolicy,
    /// PEM file of certificates to trust.
    pub ca_file: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    pool: EndpointPool,
    api_key: Option<String>,
    timeout: Duration,
    retry: RetryPolicy,
    checkpoint: OnceLock<Checkpoint>,
    /// Whether a response has exceeded the timeout.
    is_slow: AtomicBool,
    run_model: OnceLock<RunModel>,
}

/// The checkpoint that the first server of a run named.
#[derive(Debug)]
struct Checkpoint {
    fingerprint: String,
    /// Whether `/v1/models` lists it. Only then does `system_fingerprint` hold the same value: other servers
    /// use that field differently.
    is_listed: bool,
}

#[derive(Deserialize)]
#[serde(try_from = "AnyModelList")]
struct ModelList {
    data: Vec<ModelEntry>,
}

/// The list of an OpenAI-style server, or TypeSafe's, which has `models` with names.
#[derive(Deserialize)]
struct AnyModelList {
    data: Option<Vec<ModelEntry>>,
    /// Some servers have other lists with this name next to `data`.
    models: Option<Value>,
}

impl TryFrom<AnyModelList> for ModelList {
    type Error = String;

    fn try_from(list: AnyModelList) -> Result<Self, String> {
        let named = match (list.data, list.models) {
            (Some(data), _) => return Ok(Self { data }),
            (None, Some(Value::Array(named))) => named,
            (None, _) => return Err("missing field `data`".to_owned()),
        };
        let mut data = Vec::new();
        for model in named {
            let Some(id) = model["name"].as_str() else {
                return Err("an entry of `models` has no `name`".to_owned());
            };
            data.push(ModelEntry { id: id.to_owned(), others: BTreeMap::new() });
        }
        Ok(Self { data })
    }
}

/// The field of a response that names its model, for gateways that drop the header.
#[derive(Default, Deserialize)]
struct Fingerprinted {
    system_fingerprint: Option<String>,
}

/// An entry of `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct ModelEntry {
    pub id: String,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

impl ModelEntry {
    /// Returns `true` if the server reports that prompt and answer are one sequence for the model.
    pub fn is_decoder_only(&self) -> bool {
        self.others.get("encoder_decoder") == Some(&Value::Bool(false))
    }

    /// Returns the end at which prompts that are too long lose tokens. Servers that do not report it, such as
    /// vLLM, drop the first tokens.
    pub fn truncation_side(&self) -> TruncationSide {
        let side = self.others.get("truncation_side");
        side.and_then(|side| TruncationSide::deserialize(side).ok()).unwrap_or_default()
    }

    /// Returns the model without the fields that differ between servers or change over time.
    pub fn identity(mut self) -> Self {
        for field in ["created", "permission"] {
            self.others.remove(field);
        }
        self
    }

    /// Returns the first field in which two models differ, with both values, or `None` if they are the same
    /// model.
    fn difference(&self, other: &Self) -> Option<String> {
        let ours = self.clone().identity().others;
        let theirs = other.clone().identity().others;
        let field = ours.keys().chain(theirs.keys()).find(|field| ours.get(*field) != theirs.get(*field))?;
        Some(format!("`{field}` is {} and {}", value_text(ours.get(field)), value_text(theirs.get(field))))
    }
}

/// Returns a field of a model's entry for a message.
fn value_text(value: Option<&Value>) -> String {
    value.map_or("missing".to_owned(), Value::to_string)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Route {
    Completions,
    Chat,
    Score,
    Tokenize,
    Detokenize,
    Decisions,
    Systemone,
}

impl Route {
    fn url(self, endpoint: &BaseUrl) -> String {
        match self {
            Self::Completions => endpoint.join("completions"),
            Self::Chat => endpoint.join("chat/completions"),
            Self::Score => endpoint.join("score"),
            Self::Tokenize => endpoint.beside("tokenize"),
            Self::Detokenize => endpoint.beside("detokenize"),
            Self::Decisions => endpoint.join("decisions"),
            Self::Systemone => endpoint.join("systemone"),
        }
    }
}

impl Client {
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let http = trust::client_builder(config.ca_file.as_deref())?
            .read_timeout(config.timeout)
            .timeout(config.timeout.saturating_mul(TIMEOUTS_MAX))
            .redirect(Policy::custom(follow))
            .build()
            .map_err(|source| ClientError::Setup { source })?;
        let ClientConfig { endpoints, api_key, timeout, retry, .. } = config;
        Ok(Self {
            http,
            pool: EndpointPool::new(endpoints),
            api_key,
            timeout,
            retry,
            checkpoint: OnceLock::new(),
            run_model: OnceLock::new(),
            is_slow: AtomicBool::new(false),
        })
    }

    /// Returns the named model, or the only one. Sends a request to every server, so that a server that is
    /// down or serves another model is found before the run. `err` gets a line for each server that has to
    /// load its model first.
    pub async fn resolve_model(
        &self,
        wanted: Option<&str>,
        err: &mut dyn Write,
    ) -> Result<ModelEntry, ClientError> {
        let mut chosen: Option<(&BaseUrl, ModelEntry)> = None;
        for endpoint in self.pool.endpoints() {
            let wanted = wanted.or(chosen.as_ref().map(|(_, model)| model.id.as_str()));
            let listed = match self.models(endpoint, err).await {
                Ok(listed) => listed,
                // Not every server lists its models. Without a list, the given name is used unchecked.
                Err(ClientError::Refused { status: StatusCode::NOT_FOUND, .. }) if wanted.is_some() => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let found = choose(endpoint, listed, wanted)?;
            match &chosen {
                None => chosen = Some((endpoint, found)),
                Some((first, model)) => {
                    if let Some(difference) = model.difference(&found) {
                        let first = (*first).clone();
                        let second = endpoint.clone();
                        let name = found.id;
                        return Err(ClientError::DifferentModels { first, second, name, difference });
                    }
                }
            }
        }
        let model = match (chosen, wanted) {
            (Some((_, model)), _) => model,
            (None, Some(name)) => ModelEntry { id: name.to_owned(), others: BTreeMap::new() },
            (None, None) => return Err(ClientError::NoEndpoint),
        };
        if let Some(fingerprint) = model.others.get("fingerprint").and_then(Value::as_str) {
            let listed = Checkpoint { fingerprint: fingerprint.to_owned(), is_listed: true };
            self.checkpoint.get_or_init(|| listed);
        }
        Ok(model)
    }

    /// Returns the last failure of each endpoint that has not answered since. If another endpoint answers, no
    /// request fails.
    pub fn endpoint_failures(&self) -> Vec<String> {
        self.pool.failures()
    }

    pub async fn post<T: DeserializeOwned>(&self, route: Route, body: &Value) -> Result<T, ClientError> {
        let may_stream = may_stream(route, body);
        let mut body = Cow::Borrowed(body);
        if may_stream && (route == Route::Chat || self.is_slow.load(Ordering::Relaxed)) {
            body = Cow::Owned(self.streamed(&body));
        }
        let (mut retry, mut outage, mut outages, mut failures) = (0, None, 0, 0);
        loop {
            let error = match self.post_to_any(route, &body).await {
                Err(error) if error.is_transient() => error,
                Err(ClientError::NoResponse { .. }) if may_stream && body.get("stream").is_none() => {
                    self.is_slow.store(true, Ordering::Relaxed);
                    body = Cow::Owned(self.streamed(&body));
                    continue;
                }
                Err(error) if error.may_be_retried() && failures < STATUS_RETRIES_MAX => {
                    let pause = self.retry.pause_after(failures, error.retry_after());
                    tokio::time::sleep(pause.min(self.retry.unreachable_max)).await;
                    failures += 1;
                    continue;
                }
                result => return result,
            };
            let since = self.pool.outage_since(Instant::now());
            // After a response to another request, the next failure begins another outage.
            if outage.replace(since) != Some(since) {
                outages += 1;
            }
            if outages > self.retry.retries_max {
                return Err(error);
            }
            let lasted = since.elapsed();
            let left = self.retry.unreachable_max.saturating_sub(lasted);
            if left.is_zero() {
                return Err(self.explain_outage(error, lasted).await);
            }
            tokio::time::sleep(self.retry.pause_after(retry, error.retry_after()).min(left)).await;
            retry += 1;
        }
    }

    /// Returns the same request for a stream. Other servers than ntl-server may reject the option.
    fn streamed(&self, body: &Value) -> Value {
        let mut body = body.clone();
        body["stream"] = true.into();
        if self.checkpoint.get().is_some_and(|checkpoint| checkpoint.is_listed) {
            body["stream_options"] = json!({ "include_usage": true });
        }
        body
    }

    /// Sends a request to each endpoint to distinguish an outage from a request that breaks its own
    /// connection. A status such as 503 needs no such check.
    async fn explain_outage(&self, error: ClientError, lasted: Duration) -> ClientError {
        if error.is_unreachable() {
            for endpoint in self.pool.endpoints() {
                if self.is_available(endpoint).await {
                    return error;
                }
            }
        }
        ClientError::Outage { lasted, source: Box::new(error) }
    }

    /// Returns whether an endpoint lists its models.
    async fn is_available(&self, endpoint: &BaseUrl) -> bool {
        let probe = self.http.get(endpoint.join("models")).timeout(PROBE_TIMEOUT);
        let listed = self.try_once::<ModelList>(endpoint, probe).await;
        !listed.is_err_and(|error| error.is_transient() || error.is_without_response())
    }

    /// Sends a request to one endpoint after another until one returns a response.
    async fn post_to_any<T: DeserializeOwned>(&self, route: Route, body: &Value) -> Result<T, ClientError> {
        let mut last = ClientError::NoEndpoint;
        let mut tried = Vec::new();
        while let Some(lease) = self.pool.lease(&tried, Instant::now()) {
            let endpoint = lease.endpoint();
            let mut reply = self.try_once(endpoint, self.http.post(route.url(endpoint)).json(body)).await;
            if let Err(ClientError::NoResponse { .. }) = &reply
                && !self.is_available(endpoint).await
            {
                reply = reply.map_err(ClientError::into_unreachable);
            }
            match reply {
                Err(error) if error.is_transient() => {
                    tried.push(lease.index);
                    lease.failed(error.to_string(), Instant::now(), |failures| {
                        self.retry.pause_after(failures, error.retry_after())
                    });
                    last = error;
                }
                result => {
                    lease.answered();
                    return result;
                }
            }
        }
        Err(last)
    }

    /// Waits up to `unreachable_max` for a server that is busy or still loading, and announces that in `err`.
    /// Does not wait for a server that is down.
    async fn models(&self, endpoint: &BaseUrl, err: &mut dyn Write) -> Result<Vec<ModelEntry>, ClientError> {
        let began = Instant::now();
        let mut retry = 0;
        loop {
            let request = self.http.get(endpoint.join("models"));
            let error = match self.try_once::<ModelList>(endpoint, request).await {
                Err(error) if error.is_transient() && !error.is_unreachable() => error,
                result => return Ok(result?.data),
            };
            let left = self.retry.unreachable_max.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(error);
            }
            if retry == 0 {
                writeln!(err, "{error}; waiting for it").map_err(OutputError)?;
            }
            tokio::time::sleep(self.retry.pause_after(retry, error.retry_after()).min(left)).await;
            retry += 1;
        }
    }

    async fn try_once<T: DeserializeOwned>(
        &self,
        endpoint: &BaseUrl,
        request: RequestBuilder,
    ) -> Result<T, ClientError> {
        let request = match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let unreachable = |source: reqwest::Error| {
            let source = source.without_url();
            let endpoint = endpoint.clone();
            if source.is_timeout() && !source.is_connect() {
                ClientError::NoResponse { endpoint, timeout: self.timeout, cause: source }
            } else {
                ClientError::Unreachable { endpoint, source }
            }
        };
        let mut response = request.send().await.map_err(unreachable)?;
        let header = response.headers().get(FINGERPRINT_HEADER);
        let named = header.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        self.check_fingerprint(endpoint, named.as_deref())?;
        if !response.status().is_success() {
            return Err(refused(endpoint, response).await);
        }
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let (mut body, is_whole) = read_body(&mut response, BODY_BYTES_MAX).await.map_err(unreachable)?;
        if !is_whole {
            return Err(ClientError::TooLong { endpoint: endpoint.clone(), bytes_max: BODY_BYTES_MAX });
        }
        if is_stream {
            body = event_stream::whole_body(&body).map_err(|error| {
                let endpoint = endpoint.clone();
                match error {
                    StreamError::Unreadable(problem) => ClientError::Unreadable { endpoint, problem },
                    StreamError::Failed { status, message } => {
                        ClientError::Refused { endpoint, status, message, retry_after: None }
                    }
                }
            })?;
        }
        if named.is_none() && self.checkpoint.get().is_some_and(|checkpoint| checkpoint.is_listed) {
            // A body without the field is parsed below.
            let body = serde_json::from_slice::<Fingerprinted>(&body).unwrap_or_default();
            self.check_fingerprint(endpoint, body.system_fingerprint.as_deref())?;
        }
        serde_json::from_slice(&body).map_err(|error| ClientError::Unreadable {
            endpoint: endpoint.clone(),
            problem: error::problem_of(&body, &error),
        })
    }

    /// Compares the fingerprint that a response names, if any, with the first one of the run.
    fn check_fingerprint(&self, endpoint: &BaseUrl, named: Option<&str>) -> Result<(), ClientError> {
        let Some(found) = named else { return Ok(()) };
        let checkpoint =
            self.checkpoint.get_or_init(|| Checkpoint { fingerprint: found.to_owned(), is_listed: false });
        let was = &checkpoint.fingerprint;
        if was == found {
            return Ok(());
        }
        let endpoint = endpoint.clone();
        let was = was.clone();
        let is = found.to_owned();
        Err(ClientError::OtherCheckpoint { endpoint, was, is })
    }
}

/// Returns whether a server can send the response in parts: it has a text before its number, if it has one.
fn may_stream(route: Route, body: &Value) -> bool {
    let writes_first = match body.get("number") {
        None => true,
        Some(number) => number.get("after").is_some() && number.get("rationales").is_none(),
    };
    let is_searched = ["use_beam_search", "paper_decoding"].iter().any(|field| body.get(field).is_some());
    matches!(route, Route::Completions | Route::Chat) && writes_first && !is_searched
}

/// Returns the named model of a server's list, or the only one.
fn choose(
    endpoint: &BaseUrl,
    mut listed: Vec<ModelEntry>,
    wanted: Option<&str>,
) -> Result<ModelEntry, ClientError> {
    let found = match wanted {
        Some(name) => listed.iter().position(|entry| entry.id == name),
        None => (listed.len() == 1).then_some(0),
    };
    if let Some(index) = found {
        return Ok(listed.swap_remove(index));
    }
    let endpoint = endpoint.clone();
    let listed = names(listed);
    Err(match wanted {
        Some(name) => ClientError::UnknownModel { endpoint, name: name.to_owned(), listed },
        None => ClientError::ModelNotNamed { endpoint, listed },
    })
}

fn names(models: Vec<ModelEntry>) -> Vec<String> {
    models.into_iter().map(|model| model.id).collect()
}

/// Only follows redirects on the same server.
fn follow(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let is_same = attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
    if is_same && attempt.previous().len() <= REDIRECTS_MAX { attempt.follow() } else { attempt.stop() }
}

/// Reads at most `bytes_max` bytes of a body. Returns them, and `true` if they are the whole body.
async fn read_body(response: &mut Response, bytes_max: usize) -> reqwest::Result<(Vec<u8>, bool)> {
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await? {
        let room = bytes_max - body.len();
        body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            return Ok((body, false));
        }
    }
    Ok((body, true))
}

async fn refused(endpoint: &BaseUrl, mut response: Response) -> ClientError {
    let status = response.status();
    if status.is_redirection()
        && let Some(to) = response.headers().get(LOCATION)
    {
        let to = shortened(&String::from_utf8_lossy(to.as_bytes()), 200);
        return ClientError::Redirected { endpoint: endpoint.clone(), to };
    }
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
    // If the body is cut off, its text is dropped: the status says more.
    let body = read_body(&mut response, ERROR_BYTES_MAX).await.map_or_else(|_| Vec::new(), |(body, _)| body);
    let message = error::message_of(&body);
    ClientError::Refused { endpoint: endpoint.clone(), status, message, retry_after }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_decoder_only_if_the_server_reports_it() {
        for (fields, want) in [
            (r#"{"id":"m","encoder_decoder":false}"#, true),
            (r#"{"id":"m","encoder_decoder":true}"#, false),
            (r#"{"id":"m","kind":"llama"}"#, false),
        ] {
            let model: ModelEntry = serde_json::from_str(fields).unwrap();
            assert_eq!(model.is_decoder_only(), want, "{fields}");
        }
    }

    #[test]
    fn pauses_grow_with_jitter_up_to_a_limit() {
        let policy = RetryPolicy::new(Duration::from_secs(120));
        for (retry, full_ms) in [(0, 500), (1, 1_000), (3, 4_000), (40, 8_000)] {
            let pause = policy.pause_after(retry, None);
            let full = Duration::from_millis(full_ms);
            assert!(pause <= full && pause >= full / 2, "retry {retry}: {pause:?}");
        }
    }

    #[test]
    fn a_pause_is_never_shorter_than_retry_after() {
        let policy = RetryPolicy::new(Duration::from_secs(120));
        let asked = |retry, seconds| policy.pause_after(retry, Some(Duration::from_secs(seconds)));
        assert_eq!((asked(0, 0), asked(3, 7)), (Duration::ZERO, Duration::from_secs(7)));
        assert_eq!(asked(40, 9_999), Duration::from_secs(9_999));
        // After repeated values of 0, the pauses grow.
        assert!(asked(4, 0) >= Duration::from_millis(250) && asked(40, 0) >= Duration::from_secs(4));
    }
}

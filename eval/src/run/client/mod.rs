//! HTTP client for one or more OpenAI-style servers.
//!
//! Requests go to the servers in turn. Retried on the next server, after growing random pauses or the pause that the server
//! asks for: 429, 502, 503, timeouts and broken connections. Everything else fails at once.
//!
//! A server is not trusted: bodies have a limit, and a redirect leads to the same server or nowhere, since it would carry the
//! prompts elsewhere.

mod error;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::header::{LOCATION, RETRY_AFTER};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::base_url::BaseUrl;
use crate::format::shortened;

pub use self::error::ClientError;

/// Longest body of a response that is read. A number with 1,000 values takes less than 200 kB.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Longest part of an error's body that is read.
const ERROR_BYTES_MAX: usize = 64 << 10;

const REDIRECTS_MAX: usize = 5;

#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Attempts after the first one.
    pub retries_max: u32,
    /// The first pause; each further one is twice as long.
    pub pause: Duration,
    /// The longest pause, also when the server asks for more.
    pub pause_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { retries_max: 4, pause: Duration::from_millis(500), pause_max: Duration::from_secs(60) }
    }
}

impl RetryPolicy {
    /// Half of the pause is random, so that clients do not return together.
    fn pause_after(&self, attempt: u32, retry_after: Option<Duration>) -> Duration {
        let grown = self.pause.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX));
        // Freshly keyed by the operating system: random enough for a pause.
        let random = RandomState::new().hash_one(attempt) as f64 / u64::MAX as f64;
        let jittered = grown.min(self.pause_max).mul_f64(0.5 + random / 2.0);
        retry_after.unwrap_or(jittered).min(self.pause_max)
    }
}

#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// At least one.
    pub endpoints: Vec<BaseUrl>,
    pub api_key: Option<String>,
    /// For one response.
    pub timeout: Duration,
    pub retry: RetryPolicy,
}

#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    config: ClientConfig,
    requests_sent: AtomicUsize,
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelEntry>,
}

/// An entry of `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct ModelEntry {
    pub id: String,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Route {
    Completions,
    Chat,
    Score,
    Tokenize,
    Detokenize,
}

impl Route {
    fn url(self, endpoint: &BaseUrl) -> String {
        match self {
            Self::Completions => endpoint.join("completions"),
            Self::Chat => endpoint.join("chat/completions"),
            Self::Score => endpoint.join("score"),
            Self::Tokenize => endpoint.beside("tokenize"),
            Self::Detokenize => endpoint.beside("detokenize"),
        }
    }
}

impl Client {
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .timeout(config.timeout)
            .redirect(Policy::custom(follow))
            .build()
            .map_err(|source| ClientError::Setup { source })?;
        Ok(Self { http, config, requests_sent: AtomicUsize::new(0) })
    }

    /// The named model, or the only one. Sends a request to every server, so that one that is down is known before the run.
    pub async fn resolve_model(&self, wanted: Option<&str>) -> Result<ModelEntry, ClientError> {
        let unlisted = |name: &str| ModelEntry { id: name.to_owned(), others: BTreeMap::new() };
        let mut chosen = wanted.map(unlisted);
        for endpoint in &self.config.endpoints {
            let listed = match self.models(endpoint).await {
                Ok(listed) => listed,
                // Not every server lists its models; without a list a given name has to do.
                Err(ClientError::Refused { status: StatusCode::NOT_FOUND, .. }) if chosen.is_some() => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let endpoint = endpoint.clone();
            let found = chosen.as_ref().map(|model| listed.iter().find(|entry| entry.id == model.id));
            chosen = match (&chosen, found, listed.as_slice()) {
                (_, Some(Some(entry)), _) | (None, _, [entry]) => Some(entry.clone()),
                (Some(model), ..) => {
                    let (name, listed) = (model.id.clone(), names(listed));
                    return Err(ClientError::UnknownModel { endpoint, name, listed });
                }
                (None, ..) => return Err(ClientError::ModelNotNamed { endpoint, listed: names(listed) }),
            };
        }
        chosen.ok_or(ClientError::NoEndpoint)
    }

    pub async fn post<T: DeserializeOwned>(&self, route: Route, body: &Value) -> Result<T, ClientError> {
        self.with_retries(ClientError::is_transient, async || {
            let endpoint = self.next_endpoint()?;
            self.try_once(endpoint, self.http.post(route.url(endpoint)).json(body)).await
        })
        .await
    }

    /// Waits for a server that is busy or still loading, but not for one that is down.
    async fn models(&self, endpoint: &BaseUrl) -> Result<Vec<ModelEntry>, ClientError> {
        let may_retry = |error: &ClientError| error.is_transient() && !error.is_unreachable();
        let list = async || self.try_once(endpoint, self.http.get(endpoint.join("models"))).await;
        Ok(self.with_retries::<ModelList>(may_retry, list).await?.data)
    }

    async fn with_retries<T>(
        &self,
        may_retry: impl Fn(&ClientError) -> bool,
        send: impl AsyncFn() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut attempt = 0;
        loop {
            match send().await {
                Err(error) if may_retry(&error) && attempt < self.config.retry.retries_max => {
                    let pause = self.config.retry.pause_after(attempt, error.retry_after());
                    tokio::time::sleep(pause).await;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn try_once<T: DeserializeOwned>(
        &self,
        endpoint: &BaseUrl,
        request: RequestBuilder,
    ) -> Result<T, ClientError> {
        let request = match &self.config.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let unreachable = |source: reqwest::Error| ClientError::Unreachable {
            endpoint: endpoint.clone(),
            source: source.without_url(),
        };
        let mut response = request.send().await.map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(refused(endpoint, response).await);
        }
        let (body, is_whole) = read_body(&mut response, BODY_BYTES_MAX).await.map_err(unreachable)?;
        if !is_whole {
            return Err(ClientError::TooLong { endpoint: endpoint.clone(), bytes_max: BODY_BYTES_MAX });
        }
        serde_json::from_slice(&body).map_err(|error| ClientError::Unreadable {
            endpoint: endpoint.clone(),
            problem: error::problem_of(&body, &error),
        })
    }

    fn next_endpoint(&self) -> Result<&BaseUrl, ClientError> {
        let turn = self.requests_sent.fetch_add(1, Ordering::Relaxed);
        self.config.endpoints.get(turn % self.config.endpoints.len().max(1)).ok_or(ClientError::NoEndpoint)
    }
}

fn names(models: Vec<ModelEntry>) -> Vec<String> {
    models.into_iter().map(|model| model.id).collect()
}

/// Redirects stay on the same server.
fn follow(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let is_same = attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
    if is_same && attempt.previous().len() <= REDIRECTS_MAX { attempt.follow() } else { attempt.stop() }
}

/// At most `bytes_max` bytes of a body, and whether that is all of it.
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
    let retry_after =
        response.headers().get(RETRY_AFTER).and_then(|value| parse_retry_after(value.to_str().ok()?));
    // A body that breaks off says less than the status, which is kept.
    let body = read_body(&mut response, ERROR_BYTES_MAX).await.map_or_else(|_| Vec::new(), |(body, _)| body);
    let message = error::message_of(&body);
    ClientError::Refused { endpoint: endpoint.clone(), status, message, retry_after }
}

/// `Retry-After` in either of its forms: seconds, or a date.
fn parse_retry_after(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    Some(until.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_ask_for_a_pause_in_seconds_or_until_a_date() {
        assert_eq!(parse_retry_after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(parse_retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let later =
            parse_retry_after(&httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90))).unwrap();
        assert!(later > Duration::from_secs(60) && later <= Duration::from_secs(90), "{later:?}");
        assert_eq!(parse_retry_after("soon"), None);
    }

    #[test]
    fn pauses_grow_with_jitter_up_to_a_limit_and_follow_the_server() {
        let policy = RetryPolicy::default();
        for (attempt, full_ms) in [(0, 500), (1, 1_000), (3, 4_000), (40, 60_000)] {
            let pause = policy.pause_after(attempt, None);
            let full = Duration::from_millis(full_ms);
            assert!(pause <= full && pause >= full / 2, "attempt {attempt}: {pause:?}");
        }
        let asked = |seconds| policy.pause_after(0, Some(Duration::from_secs(seconds)));
        assert_eq!(
            (asked(0), asked(7), asked(9_999)),
            (Duration::ZERO, Duration::from_secs(7), policy.pause_max)
        );
    }
}

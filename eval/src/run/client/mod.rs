//! HTTP client for one or more OpenAI-style servers.
//!
//! A request goes to the available server with the fewest requests in flight. After 429, 502, 503, a timeout or a broken connection
//! it goes to the other servers at once; where none of them answers it either, it is retried after growing random pauses or the
//! pause that the server asks for. Everything else fails at once.
//!
//! A server is not trusted: bodies have a limit, and a redirect leads to the same server or nowhere, since it would carry the
//! prompts elsewhere.

mod error;
mod pool;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime};

use reqwest::header::{LOCATION, RETRY_AFTER};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::base_url::BaseUrl;
use crate::format::shortened;

pub use self::error::ClientError;
use self::pool::EndpointPool;

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
    pool: EndpointPool,
    api_key: Option<String>,
    retry: RetryPolicy,
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

impl ModelEntry {
    /// The fields that are the same wherever and whenever this model is served.
    pub fn identity(mut self) -> Self {
        for field in ["created", "permission"] {
            self.others.remove(field);
        }
        self
    }

    /// The first field in which two models differ, with both values. None for the same model.
    fn difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (self.clone().identity().others, other.clone().identity().others);
        let field = ours.keys().chain(theirs.keys()).find(|field| ours.get(*field) != theirs.get(*field))?;
        let shown = |fields: &BTreeMap<String, Value>| {
            fields.get(field).map_or("missing".to_owned(), Value::to_string)
        };
        Some(format!("`{field}` is {} and {}", shown(&ours), shown(&theirs)))
    }
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
        let ClientConfig { endpoints, api_key, retry, .. } = config;
        Ok(Self { http, pool: EndpointPool::new(endpoints), api_key, retry })
    }

    /// The named model, or the only one. Sends a request to every server, so that one that is down or serves another model is
    /// known before the run.
    pub async fn resolve_model(&self, wanted: Option<&str>) -> Result<ModelEntry, ClientError> {
        let mut chosen: Option<(&BaseUrl, ModelEntry)> = None;
        for endpoint in self.pool.endpoints() {
            let wanted = wanted.or(chosen.as_ref().map(|(_, model)| model.id.as_str()));
            let listed = match self.models(endpoint).await {
                Ok(listed) => listed,
                // Not every server lists its models; without a list a given name has to do.
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
                        let (first, second, name) = ((*first).clone(), endpoint.clone(), found.id);
                        return Err(ClientError::DifferentModels { first, second, name, difference });
                    }
                }
            }
        }
        let unlisted = |name: &str| ModelEntry { id: name.to_owned(), others: BTreeMap::new() };
        chosen.map(|(_, model)| model).or(wanted.map(unlisted)).ok_or(ClientError::NoEndpoint)
    }

    /// Why endpoints that gave no answer since then failed last. With several of them that fails no request.
    pub fn endpoint_failures(&self) -> Vec<String> {
        self.pool.failures()
    }

    pub async fn post<T: DeserializeOwned>(&self, route: Route, body: &Value) -> Result<T, ClientError> {
        self.with_retries(ClientError::is_transient, async || self.post_to_any(route, body).await).await
    }

    /// Sends a request to one endpoint after another until one answers it.
    async fn post_to_any<T: DeserializeOwned>(&self, route: Route, body: &Value) -> Result<T, ClientError> {
        let mut last = ClientError::NoEndpoint;
        let mut tried = Vec::new();
        while let Some(lease) = self.pool.lease(&tried, Instant::now()) {
            let endpoint = lease.endpoint();
            match self.try_once(endpoint, self.http.post(route.url(endpoint)).json(body)).await {
                Err(error) if error.is_transient() => {
                    tried.push(lease.index);
                    let pause = |failures| self.retry.pause_after(failures, error.retry_after());
                    lease.failed(error.to_string(), Instant::now(), pause);
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
                Err(error) if may_retry(&error) && attempt < self.retry.retries_max => {
                    let pause = self.retry.pause_after(attempt, error.retry_after());
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
        let request = match &self.api_key {
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
}

/// The named model of a server's list, or the only one.
fn choose(
    endpoint: &BaseUrl,
    mut listed: Vec<ModelEntry>,
    wanted: Option<&str>,
) -> Result<ModelEntry, ClientError> {
    let found = match wanted {
        Some(name) => listed.iter().position(|entry| entry.id == name),
        None => (listed.len() == 1).then_some(0),
    };
    let endpoint = || endpoint.clone();
    match (found, wanted) {
        (Some(index), _) => Ok(listed.swap_remove(index)),
        (None, Some(name)) => Err(ClientError::UnknownModel {
            endpoint: endpoint(),
            name: name.to_owned(),
            listed: names(listed),
        }),
        (None, None) => Err(ClientError::ModelNotNamed { endpoint: endpoint(), listed: names(listed) }),
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

//! Talks to one or more OpenAI-style servers: which models there are, and completions with or without a number.
//!
//! Requests go round the servers in turn. Tried again, on the next server: 429, 502, 503, timeouts and broken
//! connections, with growing random pauses, or the pause that the server asks for. Everything else fails at
//! once. Answers are read leniently, so that servers other than ours can be scored too.

mod error;
mod url;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ntl_api::{CompletionRequest, Number};
use reqwest::header::RETRY_AFTER;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use self::error::ClientError;
pub use self::url::BaseUrl;

/// When and how often to try again.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Tries after the first one.
    pub retries_max: u32,
    /// The first pause; each further one is twice as long, up to [`RetryPolicy::pause_max`].
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
    /// Pause before try number `attempt + 1`: half of it is random, so that clients do not return together.
    fn pause_after(&self, attempt: u32, retry_after: Option<Duration>) -> Duration {
        let grown = self.pause.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX));
        // Freshly keyed by the operating system: random enough for a pause.
        let random = RandomState::new().hash_one(attempt) as f64 / u64::MAX as f64;
        let jittered = grown.min(self.pause_max).mul_f64(0.5 + random / 2.0);
        retry_after.unwrap_or(jittered).min(self.pause_max)
    }
}

/// Where and how to connect.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// At least one server.
    pub endpoints: Vec<BaseUrl>,
    /// Bearer token.
    pub api_key: Option<String>,
    /// Most time for one answer.
    pub timeout: Duration,
    /// When to try again.
    pub retry: RetryPolicy,
}

/// A connection to all servers.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    config: ClientConfig,
    turn: AtomicUsize,
}

/// One answer to a prompt.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Completion {
    /// The text.
    pub text: String,
    /// The number, when asked for and supported.
    #[serde(default)]
    pub number: Option<Number>,
}

/// The part of `POST /v1/completions` answers that every server has.
#[derive(Deserialize)]
struct CompletionList {
    choices: Vec<Completion>,
}

/// The part of `GET /v1/models` that every server has.
#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelName>,
}

#[derive(Deserialize)]
struct ModelName {
    id: String,
}

impl Client {
    /// Sends nothing yet.
    ///
    /// # Errors
    /// No TLS or resolver on this system.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .timeout(config.timeout)
            .build()
            .map_err(|source| ClientError::Setup { source })?;
        Ok(Self { http, config, turn: AtomicUsize::new(0) })
    }

    /// The model to ask: the wanted one, or the only one. Reaches every server once, so that one that is down is
    /// known before the run.
    ///
    /// # Errors
    /// A server is not reachable, does not have the model, or has several and none was named.
    pub async fn resolve_model(&self, wanted: Option<&str>) -> Result<String, ClientError> {
        let mut chosen = wanted.map(str::to_owned);
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
            match (&chosen, listed.as_slice()) {
                (Some(name), _) if listed.contains(name) => {}
                (Some(name), _) => {
                    return Err(ClientError::UnknownModel { endpoint, name: name.clone(), listed });
                }
                (None, [only]) => chosen = Some(only.clone()),
                (None, _) => return Err(ClientError::ModelNotNamed { endpoint, listed }),
            }
        }
        chosen.ok_or(ClientError::NoEndpoint)
    }

    /// Asks one server, and others in its place if need be.
    ///
    /// # Errors
    /// No server gave a readable answer.
    pub async fn complete(&self, body: &CompletionRequest) -> Result<Completion, ClientError> {
        let mut attempt = 0;
        loop {
            let endpoint = self.next_endpoint()?;
            let request = self.http.post(endpoint.join("completions")).json(body);
            match self.try_once::<CompletionList>(endpoint, request).await {
                Ok(list) => {
                    let first = list.choices.into_iter().next();
                    return first.ok_or_else(|| ClientError::NoChoices { endpoint: endpoint.clone() });
                }
                Err(error) if error.is_passing() && attempt < self.config.retry.retries_max => {
                    self.pause(attempt, &error).await;
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for a server that is busy or still loading, but not for one that is down.
    async fn models(&self, endpoint: &BaseUrl) -> Result<Vec<String>, ClientError> {
        let mut attempt = 0;
        loop {
            match self.try_once::<ModelList>(endpoint, self.http.get(endpoint.join("models"))).await {
                Ok(models) => return Ok(models.data.into_iter().map(|model| model.id).collect()),
                Err(error)
                    if error.is_passing()
                        && !error.is_unreachable()
                        && attempt < self.config.retry.retries_max =>
                {
                    self.pause(attempt, &error).await;
                    attempt += 1;
                }
                Err(error) => return Err(error),
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
        let response = request.send().await.map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(refused(endpoint, response).await);
        }
        let body = response.bytes().await.map_err(unreachable)?;
        serde_json::from_slice(&body)
            .map_err(|source| ClientError::Unreadable { endpoint: endpoint.clone(), source })
    }

    async fn pause(&self, attempt: u32, error: &ClientError) {
        tokio::time::sleep(self.config.retry.pause_after(attempt, error.retry_after())).await;
    }

    fn next_endpoint(&self) -> Result<&BaseUrl, ClientError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.config.endpoints.get(turn % self.config.endpoints.len().max(1)).ok_or(ClientError::NoEndpoint)
    }
}

async fn refused(endpoint: &BaseUrl, response: Response) -> ClientError {
    let status = response.status();
    let seconds =
        response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    // A body that breaks off says less than the status, which is kept.
    let body = response.bytes().await.unwrap_or_default();
    let message = error::message_of(&body);
    ClientError::Refused {
        endpoint: endpoint.clone(),
        status,
        message,
        retry_after: seconds.map(Duration::from_secs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

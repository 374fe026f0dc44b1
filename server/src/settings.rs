//! How HTTP requests are treated: limits, API keys, allowed origins. Plain values that `config` makes of the flags.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::metrics::MetricsCompat;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    pub api_keys: ApiKeys,
    /// Web pages that may call the API from a browser.
    pub cors_origins: Origins,
    /// Of one request body.
    pub body_bytes_max: usize,
    /// Of all request bodies that are being read, and again of what they become once parsed.
    pub bodies_bytes_max: usize,
    /// Bytes of memory beyond which new work is refused; `None`: nine tenths of what the process may use, 0: no bound.
    pub memory_bytes_max: Option<u64>,
    /// Longest time that a request body may take to arrive.
    pub body_time_max: Duration,
    /// Longest time until a request is answered, the time in the queue included.
    pub request_time_max: Duration,
    /// Largest `max_tokens` that a request may ask for.
    pub output_tokens_max: u64,
    /// Largest number of alternatives that `logprobs` may ask for; `None` allows the whole vocabulary.
    pub logprobs_max: Option<usize>,
    /// Whether `GET /` answers with the playground.
    pub playground: bool,
    /// How long requests are still accepted after the first signal, while readiness is already refused.
    pub drain_delay: Duration,
    /// Another server whose names of metrics are given as well.
    pub metrics_compat: Option<MetricsCompat>,
    /// Whether request bodies are logged.
    pub log_prompts: bool,
    /// The device as `GET /version` reports it.
    pub device: String,
}

/// The accepted API keys. An empty set disables authentication. `Debug` shows only how many there are; what a client sends is
/// compared with `ApiKeys::matched`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Arc<[String]>);

impl ApiKeys {
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Which key a request carries. Compares with every key in constant time, so that response times do not reveal a prefix
    /// of a key.
    pub(crate) fn matched(&self, headers: &HeaderMap) -> Option<MatchedKey> {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()))?;
        let (mut found, mut place) = (Choice::from(0), 0);
        for (index, key) in (0_u32..).zip(&*self.0) {
            let is_this = given.ct_eq(key.as_bytes());
            place.conditional_assign(&index, is_this);
            found |= is_this;
        }
        bool::from(found).then_some(MatchedKey(place))
    }
}

/// One of the accepted API keys, by its place among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatchedKey(u32);

/// What follows the scheme `Bearer`, in any case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// Origins that cross-origin requests are accepted from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origins {
    #[default]
    None,
    Any,
    /// Such as `https://example.com`.
    These(Vec<HeaderValue>),
}

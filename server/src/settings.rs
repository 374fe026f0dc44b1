//! The settings of HTTP requests: limits, API keys, allowed origins. `config` derives them from the flags.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;

use crate::keys::ApiKeys;
use crate::metrics::MetricsCompat;
use crate::proxies::TrustedProxies;
use crate::quota::Quota;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    pub api_keys: ApiKeys,
    /// The limits of each key, unless the file of keys has others for it.
    pub quota: Quota,
    pub allowed_hosts: AllowedHosts,
    pub trusted_proxies: TrustedProxies,
    /// Whether prompts of different API keys use the same cached prefixes.
    pub share_prefix_cache: bool,
    /// Web pages that may call the API from a browser.
    pub cors_origins: Origins,
    /// Maximum size of one request body, in bytes.
    pub body_bytes_max: usize,
    /// Maximum size of all request bodies that are being read, in bytes, and the maximum memory of all parsed
    /// bodies.
    pub bodies_bytes_max: usize,
    /// Maximum size of one response, as estimated from the request, in bytes.
    pub response_bytes_max: usize,
    /// Maximum size of all large responses that clients have not read yet, in bytes.
    pub responses_bytes_max: usize,
    /// Maximum memory of the process while it accepts new work, in bytes; `None`: nine tenths of the
    /// available memory, 0: no limit.
    pub memory_bytes_max: Option<u64>,
    /// Maximum time until a request body has arrived.
    pub body_time_max: Duration,
    /// Maximum time of a request, including its time in the queue.
    pub request_time_max: Duration,
    /// Maximum value of `max_tokens`.
    pub output_tokens_max: u64,
    /// Maximum value of `logprobs`; `None` allows the whole vocabulary.
    pub logprobs_max: Option<usize>,
    /// Whether `GET /` serves the playground.
    pub playground: bool,
    /// How long requests are still accepted after the first signal, while readiness is already refused.
    pub drain_delay: Duration,
    /// Another server whose names of metrics are given as well.
    pub metrics_compat: Option<MetricsCompat>,
    /// Whether only the listener for operators has `/metrics`.
    pub metrics_on_admin_only: bool,
    /// The directory from which adapters may be loaded at run time; `None` allows none.
    pub adapters_from: Option<PathBuf>,
    /// Maximum memory of all adapters, in bytes.
    pub adapter_bytes_max: u64,
    /// Whether request bodies are logged.
    pub log_prompts: bool,
    /// The device as `GET /version` reports it.
    pub device: String,
}

/// Names of the server that requests may have in `Host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHosts {
    /// In lower case and without ports, in addition to localhost, loopback addresses and the address that the
    /// client connected to; `None` allows any.
    pub names: Option<Vec<String>>,
    /// Whether names are always checked, and not only on a loopback address without API keys.
    pub always: bool,
}

/// Origins that cross-origin requests are accepted from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origins {
    #[default]
    None,
    Any,
    /// Origins such as `https://example.com`.
    These(Vec<HeaderValue>),
}

//! The models that another engine computes: `--model NAME=URL[#MODEL]`.

use std::path::PathBuf;
use std::time::Duration;

use ntl_remote::{ApiKey, BaseUrl, EngineKind, IDLE_CONNECTIONS_MAX, InvalidKey, InvalidUrl};

use crate::hub::Location;

/// Time that an engine may take for one response, unless a flag says another one.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Requests for next-token probabilities that an engine gets at the same time, unless a flag says another
/// number.
pub(super) const CONCURRENCY: usize = 64;

/// Connections to a replica without a request of a client: unused connections, and two for health checks.
const REPLICA_CONNECTIONS: usize = IDLE_CONNECTIONS_MAX + 2;

/// A model on another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteModel {
    /// Never empty.
    pub replicas: Vec<BaseUrl>,
    /// Its name on that server; `None` means the only one there.
    pub model: Option<String>,
    /// `None`: the server's own description decides.
    pub kind: Option<EngineKind>,
    pub api_key: Option<ApiKey>,
    /// Directory with the tokenizer.
    pub tokenizer: Option<Location>,
    /// Maximum time of one response.
    pub timeout: Duration,
    /// Maximum number of concurrent requests for next-token probabilities, and of those for texts before and
    /// between numbers.
    pub concurrency: usize,
    /// Maximum number of concurrent requests for texts that the engine answers by itself.
    pub texts_max: usize,
    /// Fields that are forwarded although they make the engine connect to an address of the client's choice.
    pub fields: Vec<String>,
    /// PEM file of certificates to trust, in addition to the system's.
    pub ca_file: Option<PathBuf>,
}

/// Flags about models on other servers that are wrong. No message repeats a key.
#[derive(Debug, thiserror::Error)]
pub enum RemoteModelError {
    /// `url`: without its path.
    #[error("--model: `{url}`: {problem}")]
    Url { url: String, problem: InvalidUrl },
    /// The URL may contain a password.
    #[error("--model: {0}")]
    Credentials(InvalidUrl),
    /// The URL may contain a password.
    #[error("--model: the URL of a model needs a name; write NAME=URL")]
    NoName,
    #[error("--model: the replicas of `{0}` name different models after `#`")]
    TwoModels(String),
    #[error("{flag} {text}: {problem}")]
    Flag { flag: &'static str, text: String, problem: String },
    #[error("--upstream-api-key: {0}")]
    Key(#[from] InvalidKey),
    #[error("{0} is only for models that another engine computes: --model NAME=URL")]
    NoRemoteModel(&'static str),
    #[error("--adapter: `{0}` is computed by another engine; load the adapter there")]
    Adapter(String),
}

/// Returns whether a value of `--model` is the URL of a model, or of another replica of the model before it.
pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

impl RemoteModel {
    /// A model with one replica, `URL[#MODEL]`.
    pub(super) fn new(url: &str) -> Result<Self, RemoteModelError> {
        let (base, model) = replica(url)?;
        Ok(Self {
            replicas: vec![base],
            model,
            kind: None,
            api_key: None,
            tokenizer: None,
            timeout: TIMEOUT,
            concurrency: CONCURRENCY,
            texts_max: 1,
            fields: Vec::new(),
            ca_file: None,
        })
    }

    /// Maximum number of concurrent requests to its replicas, each of which has a connection.
    pub(crate) fn requests_max(&self) -> usize {
        self.texts_max.saturating_add(self.concurrency.saturating_mul(2))
    }

    /// Maximum number of connections to its replicas without a request of a client.
    pub(crate) fn other_connections_max(&self) -> usize {
        self.replicas.len() * REPLICA_CONNECTIONS
    }

    /// Lowers the numbers of concurrent requests to `share` of `wanted` requests to all engines.
    pub(crate) fn limit_requests(&mut self, share: usize, wanted: usize) {
        for count in [&mut self.texts_max, &mut self.concurrency] {
            *count = (count.saturating_mul(share) / wanted.max(1)).max(1);
        }
    }

    /// Adds another replica, `URL[#MODEL]`.
    pub(super) fn add_replica(&mut self, name: &str, url: &str) -> Result<(), RemoteModelError> {
        let (base, model) = replica(url)?;
        self.replicas.push(base);
        match (&self.model, model) {
            (Some(known), Some(model)) if *known != model => {
                Err(RemoteModelError::TwoModels(name.to_owned()))
            }
            (None, model @ Some(_)) => {
                self.model = model;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The scheme, the host and the port of a URL. All other parts may hold a secret.
fn address(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

fn replica(text: &str) -> Result<(BaseUrl, Option<String>), RemoteModelError> {
    let (url, model) = match text.split_once('#') {
        Some((url, model)) => (url, Some(model.to_owned()).filter(|model| !model.is_empty())),
        None => (text, None),
    };
    let base = url.parse().map_err(|problem| match problem {
        InvalidUrl::Credentials => RemoteModelError::Credentials(problem),
        problem => RemoteModelError::Url { url: address(url), problem },
    })?;
    Ok((base, model))
}

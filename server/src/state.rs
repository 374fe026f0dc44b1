//! What all handlers share: settings, models, metrics, and whether the server still takes work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

pub use crate::auth::ApiKeys;
pub use crate::cors::Origins;
use crate::metrics::Metrics;
use crate::models::Models;

/// How requests are treated.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// Keys that open the API; without any it is open.
    pub api_keys: ApiKeys,
    /// Web pages that may call the API.
    pub cors_origins: Origins,
    /// Most bytes of a request body.
    pub body_bytes_max: usize,
    /// Most time that a request body may take to arrive.
    pub body_time_max: Duration,
    /// Most time that an answer may take, waiting included.
    pub request_time_max: Duration,
    /// Most tokens that a text may be asked to have.
    pub output_tokens_max: u64,
    /// Most alternatives to a token that `logprobs` may ask for; `None` allows the whole vocabulary.
    pub logprobs_max: Option<usize>,
    /// Whether what requests ask for is logged.
    pub log_prompts: bool,
    /// Where models run, as `GET /version` says it.
    pub device: String,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            cors_origins: Origins::default(),
            body_bytes_max: 2 << 20,
            body_time_max: Duration::from_secs(30),
            request_time_max: Duration::from_secs(600),
            output_tokens_max: 4096,
            logprobs_max: Some(20),
            log_prompts: false,
            device: "cpu".to_owned(),
        }
    }
}

/// The state behind a router. Clones share it.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// The inside of an [`AppState`].
pub struct Shared {
    /// How requests are treated.
    pub settings: HttpSettings,
    /// The models, once they are loaded.
    pub models: Models,
    /// What Prometheus reads.
    pub metrics: Arc<Metrics>,
    /// Whether requests are taken, and how many are being answered.
    pub lifecycle: Lifecycle,
}

impl std::ops::Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl AppState {
    /// A server without models, which answers 503 until [`Models::publish`].
    pub fn new(settings: HttpSettings, metrics: Arc<Metrics>) -> Self {
        let (models, lifecycle) = (Models::default(), Lifecycle::default());
        Self(Arc::new(Shared { settings, models, metrics, lifecycle }))
    }
}

/// Whether requests are taken, and how many are being answered.
#[derive(Debug, Default)]
pub struct Lifecycle {
    draining: AtomicBool,
    in_flight: watch::Sender<usize>,
}

impl Lifecycle {
    /// From now on new work is refused.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether new work is refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Requests whose answer is not complete.
    pub fn in_flight(&self) -> usize {
        *self.in_flight.borrow()
    }

    /// Waits until no request is being answered.
    pub async fn idle(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.in_flight.subscribe().wait_for(|&count| count == 0).await;
    }

    pub(crate) fn enter(&self) {
        self.in_flight.send_modify(|count| *count += 1);
    }

    pub(crate) fn leave(&self) {
        self.in_flight.send_modify(|count| *count = count.saturating_sub(1));
    }
}

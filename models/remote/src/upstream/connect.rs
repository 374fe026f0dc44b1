//! Connects to a model: waits for an engine, detects it, compares the tokenizers, and starts health checks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::detect::{check_model, detect};
use super::slots::Slots;
use super::tokenization::compare;
use super::{DetectError, EngineFacts, EngineKind, TokenizationError, Upstream, UpstreamConfig, Vocabulary};
use crate::client::{BaseUrl, Client, ClientError, UpstreamError};
use crate::engine::gate::FairGate;
use crate::replicas::{Check, Replicas, UpstreamObserver, supervise};
use crate::wire::texts::TokenTexts;

/// Pause between two attempts to reach an engine.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Attempts between two lines of the log.
const ATTEMPTS_PER_LINE: u32 = 30;

/// Maximum time of a health check.
const CHECK_TIME_MAX: Duration = Duration::from_secs(10);

/// A model whose engine is not known yet.
pub struct Connecting {
    config: UpstreamConfig,
    client: Client,
}

impl Connecting {
    pub fn new(config: UpstreamConfig) -> Result<Self, ClientError> {
        let client = Client::new(config.api_key.clone(), config.timeout, config.ca_file.as_deref())?;
        Ok(Self { config, client })
    }

    /// Describes the engine of the first replica that answers. Waits until one does: engines load for minutes.
    pub async fn detect(&self) -> Result<EngineFacts, DetectError> {
        let mut attempts = 0;
        loop {
            for base in &self.config.replicas {
                let UpstreamConfig { model, kind, .. } = &self.config;
                match detect(&self.client, base, model.as_deref(), *kind).await {
                    Err(DetectError::Upstream(error)) if error.is_transient() || error.is_timeout() => {
                        if attempts % ATTEMPTS_PER_LINE == 0 {
                            tracing::warn!(%error, "waiting for the engine of a model");
                        }
                    }
                    result => return result,
                }
            }
            attempts += 1;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Compares the tokenizers of all replicas that answer, and checks all replicas from now on. The others are
    /// used once they serve the same model with the same tokenizer.
    ///
    /// # Errors
    /// If a replica serves another model or has another tokenizer, or if none answers.
    pub async fn connect(
        self,
        facts: EngineFacts,
        vocabulary: Arc<dyn Vocabulary>,
        observer: Arc<dyn UpstreamObserver>,
    ) -> Result<Arc<Upstream>, TokenizationError> {
        let Self { config, client } = self;
        let requests = FairGate::new(config.requests_max);
        let written_texts = FairGate::new(config.requests_max);
        let replicas = Replicas::new(client.clone(), config.replicas, observer);
        let pool = &replicas.pool;
        let check = ReplicaCheck {
            client: client.within(CHECK_TIME_MAX),
            facts: facts.clone(),
            vocabulary: Arc::clone(&vocabulary),
        };
        let mut last = None;
        for index in 0..pool.len() {
            match check.all(pool.base(index)).await {
                Ok(()) => {}
                Err(TokenizationError::Upstream(error)) if error.is_transient() || error.is_timeout() => {
                    tracing::warn!(%error, "a replica is unavailable");
                    pool.set_up(index, false, Instant::now());
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = last.filter(|_| !pool.any_is_up()) {
            return Err(error.into());
        }
        for index in 0..pool.len() {
            tokio::spawn(supervise(Arc::downgrade(pool), index, check.clone()));
        }
        let texts = if facts.kind == EngineKind::OpenAi { vocabulary.texts() } else { TokenTexts::default() };
        let slots = facts.slots.map(Slots::new);
        Ok(Arc::new(Upstream { replicas, facts, vocabulary, texts, slots, requests, written_texts }))
    }
}

#[derive(Clone)]
struct ReplicaCheck {
    client: Client,
    facts: EngineFacts,
    vocabulary: Arc<dyn Vocabulary>,
}

impl ReplicaCheck {
    async fn all(&self, base: &BaseUrl) -> Result<(), TokenizationError> {
        check_model(&self.client, base, &self.facts.model).await?;
        compare(&self.client, base, &self.facts, &*self.vocabulary).await
    }
}

impl Check for ReplicaCheck {
    async fn alive(&self, base: &BaseUrl) -> Result<(), UpstreamError> {
        const BYTES_MAX: usize = 1 << 20;
        let route = match self.facts.kind {
            EngineKind::Vllm | EngineKind::LlamaCpp => "/health",
            EngineKind::Ntl => "/health/ready",
            EngineKind::OpenAi => "/v1/models",
        };
        self.client.get(base, route, BYTES_MAX).await.map(drop)
    }

    async fn same_model(&self, base: &BaseUrl) -> Result<(), UpstreamError> {
        self.alive(base).await?;
        self.all(base).await.map_err(|error| match error {
            TokenizationError::Upstream(error) => error,
            different => {
                UpstreamError::NotUnderstood { replica: base.to_string(), reason: different.to_string() }
            }
        })
    }
}

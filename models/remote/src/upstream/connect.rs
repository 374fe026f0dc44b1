//! Connects to a model: waits for an engine, detects it, compares the tokenizers, and starts health checks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ntl_text::tokenizer::Tokenizer;

use super::detect::{check_facts, describe, detect};
use super::identity::{Evidence, Identity};
use super::slots::Slots;
use super::tokenization::compare;
use super::{DetectError, EngineFacts, EngineKind, TokenizationError, Upstream, UpstreamConfig};
use crate::client::{BaseUrl, Client, ClientError, UpstreamError};
use crate::engine::gate::FairGate;
use crate::replicas::{Check, ReplicaPool, Replicas, UpstreamObserver, supervise};
use crate::wire::texts::TokenTexts;

/// Pause between two attempts to reach an engine.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Attempts between two lines of the log.
const ATTEMPTS_PER_LINE: u32 = 30;

/// Maximum time of a health check.
const CHECK_TIME_MAX: Duration = Duration::from_secs(10);

/// The fixed prompts are computed in one of this many health checks: they delay other requests.
const CHECKS_PER_PROBE: u64 = 6;

/// A model whose engine is not known yet.
pub struct Connecting {
    config: UpstreamConfig,
    client: Client,
}

impl Connecting {
    pub fn new(mut config: UpstreamConfig) -> Result<Self, ClientError> {
        BaseUrl::distinguish(&mut config.replicas);
        let UpstreamConfig { api_key, timeout, ca_file, replicas, .. } = &config;
        let client = Client::new(api_key.clone(), *timeout, ca_file.as_deref(), replicas)?;
        Ok(Self { config, client })
    }

    /// Returns a text from an engine for logs: on one line, without control characters and without secrets.
    pub fn printable(&self, text: &str) -> String {
        self.client.printable(text)
    }

    /// Describes the engine of the first replica that answers. Waits until one does: engines load for
    /// minutes.
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

    /// Compares the tokenizers of all replicas that answer, and checks all replicas from now on. The others
    /// are used once they serve the same model with the same tokenizer.
    ///
    /// # Errors
    /// If a replica serves another model or has another tokenizer, or if none answers.
    pub async fn connect(
        self,
        facts: EngineFacts,
        tokenizer: Arc<Tokenizer>,
        observer: Arc<dyn UpstreamObserver>,
    ) -> Result<Arc<Upstream>, TokenizationError> {
        let Self { config, client } = self;
        let requests = FairGate::new(config.requests_max);
        let written_texts = FairGate::new(config.requests_max);
        let replicas = Replicas::new(client.clone(), config.replicas, observer);
        let pool = &replicas.pool;
        let texts = Arc::new(match facts.kind {
            EngineKind::OpenAi => TokenTexts::new(&tokenizer),
            _ => TokenTexts::default(),
        });
        let identity = Arc::new(Identity::default());
        let check = ReplicaCheck {
            check_client: client.for_checks(CHECK_TIME_MAX),
            client,
            facts: facts.clone(),
            tokenizer: Arc::clone(&tokenizer),
            texts: Arc::clone(&texts),
            identity: Arc::clone(&identity),
        };
        let mut last = None;
        for index in 0..pool.len() {
            match check.first(pool.base(index)).await {
                Ok(()) => {}
                Err(TokenizationError::Upstream(error)) if error.is_transient() || error.is_timeout() => {
                    tracing::warn!(%error, "a replica is unavailable");
                    pool.set_up(index, false, Instant::now());
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        if let (Some(error), false) = (last, pool.any_is_up()) {
            return Err(error.into());
        }
        for index in 0..pool.len() {
            tokio::spawn(supervise(Arc::downgrade(pool), index, check.clone(), config.check_interval));
        }
        let slots = facts.slots.map(Slots::new);
        Ok(Arc::new(Upstream { replicas, facts, tokenizer, texts, slots, identity, requests, written_texts }))
    }
}

#[derive(Clone)]
struct ReplicaCheck {
    /// The client of all requests.
    client: Client,
    /// A client that accepts other weights.
    check_client: Client,
    facts: EngineFacts,
    tokenizer: Arc<Tokenizer>,
    texts: Arc<TokenTexts>,
    identity: Arc<Identity>,
}

impl ReplicaCheck {
    /// Checks a replica before it gets requests: its engine, its tokenizer and its weights.
    async fn first(&self, base: &BaseUrl) -> Result<(), TokenizationError> {
        let client = &self.check_client;
        if *base != self.facts.replica {
            check_facts(client, base, &self.facts).await?;
        }
        compare(client, base, &self.facts, &self.tokenizer).await?;
        match self.evidence(base).await {
            Ok(evidence) if self.accepts(&evidence) => Ok(()),
            Ok(_) => {
                let reason = "its weights differ from the replicas before it".to_owned();
                Err(UpstreamError::OtherModel { replica: base.to_string(), reason }.into())
            }
            Err(error) if error.is_clients_fault() => {
                tracing::warn!(%error, "a change of the weights will not be noticed");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that a replica serves the same model with the same tokenizer.
    async fn same_tokenizer(&self, base: &BaseUrl) -> Result<(), UpstreamError> {
        let client = &self.check_client;
        check_facts(client, base, &self.facts).await?;
        let compared = compare(client, base, &self.facts, &self.tokenizer).await;
        compared.map_err(|error| match error {
            TokenizationError::Upstream(error) => error,
            different => {
                UpstreamError::OtherModel { replica: base.to_string(), reason: different.to_string() }
            }
        })
    }

    async fn evidence(&self, base: &BaseUrl) -> Result<Evidence, UpstreamError> {
        let client = &self.check_client;
        Evidence::collect(client, base, &self.facts, &self.tokenizer, &self.texts).await
    }

    async fn responds(&self, base: &BaseUrl) -> Result<(), UpstreamError> {
        const BYTES_MAX: usize = 1 << 20;
        let route = match self.facts.kind {
            EngineKind::Vllm | EngineKind::LlamaCpp | EngineKind::Sglang => "/health",
            EngineKind::Ntl => "/health/ready",
            // The description is requested anyway.
            EngineKind::OpenAi | EngineKind::OpenAiChat => return Ok(()),
        };
        self.check_client.get(base, route, BYTES_MAX).await.map(drop)
    }

    /// Returns whether these are the weights in use. The first ones are.
    fn accepts(&self, evidence: &Evidence) -> bool {
        if self.identity.described().is_none() {
            self.adopt(evidence.clone());
        }
        self.identity.matches(evidence)
    }

    fn adopt(&self, evidence: Evidence) {
        self.client.expect_fingerprint(evidence.described.fingerprint.clone());
        self.identity.adopt(evidence);
    }

    /// Accepts the weights in use. Other ones are used from now on if no other replica has the former ones.
    async fn verify(&self, pool: &ReplicaPool, index: usize) -> Result<(), UpstreamError> {
        let base = pool.base(index);
        // A single wrong response does not show another model.
        if self.accepts(&self.evidence(base).await?) {
            return Ok(());
        }
        let evidence = self.evidence(base).await?;
        if self.accepts(&evidence) {
            return Ok(());
        }
        self.same_tokenizer(base).await?;
        if pool.another_is_up(index) {
            let reason = "its weights differ from the other replicas".to_owned();
            return Err(UpstreamError::OtherModel { replica: base.to_string(), reason });
        }
        self.adopt(evidence);
        let fingerprint = self.identity.fingerprint();
        tracing::warn!(replica = %base, fingerprint = fingerprint.as_deref(), "the weights of a model have changed");
        Ok(())
    }
}

impl Check for ReplicaCheck {
    async fn alive(&self, pool: &ReplicaPool, index: usize, number: u64) -> Result<(), UpstreamError> {
        let base = pool.base(index);
        self.responds(base).await?;
        let described = describe(&self.check_client, base, &self.facts).await?;
        let may_probe = number % CHECKS_PER_PROBE == CHECKS_PER_PROBE - 1;
        let is_known = match self.identity.described() {
            Some(known) => known == described && (described.fingerprint.is_some() || !may_probe),
            // The engine rejected the prompts.
            None => !may_probe,
        };
        if is_known {
            return Ok(());
        }
        match self.verify(pool, index).await {
            Err(error) if !error.is_other_model() => {
                // A busy engine may take long for the prompts, or reject them.
                tracing::debug!(%error, "the weights of a replica were not checked");
                Ok(())
            }
            result => result,
        }
    }

    async fn same_model(&self, pool: &ReplicaPool, index: usize) -> Result<(), UpstreamError> {
        let base = pool.base(index);
        self.responds(base).await?;
        self.same_tokenizer(base).await?;
        match self.verify(pool, index).await {
            Err(error) if error.is_clients_fault() => Ok(()),
            result => result,
        }
    }
}

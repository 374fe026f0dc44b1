//! A model that an engine elsewhere computes: [`NextTokens`] over HTTP.
//!
//! Queries of one call are sent as few requests with several rows each. A request is bounded in rows and ids,
//! and the number of requests in flight is bounded for each model and shared round-robin by client; texts are
//! counted apart from probabilities, so that a long text delays no number. Ids are sent, never text, if the
//! engine accepts ids.

mod chat;
mod connect;
mod detect;
mod forward;
mod identity;
mod request;
mod row;
mod rows;
mod slots;
mod tokenization;
mod write;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use ntl_core::contract::EngineError;
use ntl_core::sampling::SamplingParams;
use ntl_text::tokenizer::Tokenizer;

use crate::client::{ApiKey, BaseUrl, Client, UpstreamError};
use crate::engine::gate::FairGate;
use crate::engine::{
    ChatAnswer, ChatQuery, NextTokenAnswer, NextTokenQuery, NextTokens, QueryContext, TextDelta, TextQuery,
};
use crate::replicas::Replicas;
use crate::wire::texts::TokenTexts;
pub use connect::Connecting;
pub use detect::{DetectError, EngineFacts, EngineKind, Reports};
pub use forward::Forwarded;
use identity::Identity;
use row::Row;
use slots::Slots;
pub use tokenization::TokenizationError;

/// How to reach a model.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// At least one.
    pub replicas: Vec<BaseUrl>,
    /// The name of the model on the engine; `None` means its only one.
    pub model: Option<String>,
    /// `None`: the engine's own description decides.
    pub kind: Option<EngineKind>,
    pub api_key: Option<ApiKey>,
    /// Maximum time of one response, or between two parts of a text.
    pub timeout: Duration,
    /// Time between two checks of an available replica.
    pub check_interval: Duration,
    /// PEM file of certificates to trust, in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum number of concurrent requests for probabilities, and of those for texts before and between
    /// numbers. A quarter is for clients without running ones.
    pub requests_max: usize,
}

/// A model on an engine elsewhere.
pub struct Upstream {
    replicas: Replicas,
    facts: EngineFacts,
    tokenizer: Arc<Tokenizer>,
    /// Only for engines that report texts.
    texts: Arc<TokenTexts>,
    /// Only for llama.cpp.
    slots: Option<Slots>,
    identity: Arc<Identity>,
    requests: Arc<FairGate>,
    written_texts: Arc<FairGate>,
}

impl Upstream {
    pub fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    /// The fingerprint of the weights that compute the model now; `None` if nothing is known about them.
    pub fn fingerprint(&self) -> Option<Arc<str>> {
        self.identity.fingerprint()
    }

    /// Returns whether texts come with their token ids, and the ids that they may consist of can be limited.
    pub fn writes_ids(&self) -> bool {
        !matches!(self.facts.kind, EngineKind::OpenAi | EngineKind::OpenAiChat)
    }

    /// Returns whether a replica is available.
    pub fn is_available(&self) -> bool {
        self.replicas.pool.any_is_up()
    }

    /// The number of jobs after which further ones would evict the prompts of others from the caches of the
    /// engine, if it is known. A quarter of the jobs is for clients without running ones, so the other three
    /// quarters fill the caches.
    pub fn jobs_max(&self) -> Option<usize> {
        let slots = self.facts.slots?.saturating_mul(self.replicas.pool.len()).max(1);
        Some(slots.saturating_mul(4).div_ceil(3))
    }

    /// The slots of a llama.cpp for rows of a tree. Trees are numbered, and go to the replicas round-robin.
    fn slots(&self, context: &QueryContext, rows: &[Row]) -> Vec<Option<usize>> {
        let Some(slots) = &self.slots else { return vec![None] };
        let replicas = self.replicas.pool.len().max(1);
        let home = usize::try_from(context.affinity).unwrap_or(0) / replicas % slots.len();
        // Which rows the slots of a replica computed last is known only if there is one replica.
        if context.is_alone && replicas == 1 && rows.len() > 1 {
            slots.divide(home, rows).into_iter().map(Some).collect()
        } else {
            vec![Some(home)]
        }
    }

    fn client(&self) -> &Client {
        &self.replicas.client
    }
}

impl NextTokens for Upstream {
    fn ask(
        &self,
        context: QueryContext,
        queries: Vec<NextTokenQuery>,
    ) -> BoxFuture<'_, Result<Vec<NextTokenAnswer>, EngineError>> {
        Box::pin(self.answers(context, queries))
    }

    fn weight_changes(&self) -> u64 {
        self.identity.changes()
    }

    /// llama.cpp adds the bias that limits the choice before it divides logits by the penalty, so that
    /// allowed tokens of the prompt would become far less probable than other allowed ones.
    fn check_choices(&self, sampling: &SamplingParams) -> Result<(), EngineError> {
        let is_penalised = (sampling.repetition_penalty - 1.0).abs() > 0.0;
        if self.facts.kind == EngineKind::LlamaCpp && is_penalised {
            let message =
                "`repetition_penalty` is not supported with numbers in a text that llama.cpp writes";
            return Err(EngineError::Unsupported(message.to_owned()));
        }
        Ok(())
    }

    fn write(
        &self,
        context: QueryContext,
        query: TextQuery,
    ) -> BoxStream<'_, Result<TextDelta, EngineError>> {
        Box::pin(self.text(context, query))
    }

    fn chat(
        &self,
        context: QueryContext,
        query: ChatQuery,
    ) -> BoxFuture<'_, Result<ChatAnswer, EngineError>> {
        Box::pin(self.answer(context, query))
    }
}

impl From<UpstreamError> for EngineError {
    fn from(error: UpstreamError) -> Self {
        let message = error.to_string();
        match error {
            UpstreamError::Rejected { .. } => Self::UpstreamRejected(message),
            UpstreamError::Timeout { .. } => Self::UpstreamTimeout(message),
            UpstreamError::Overloaded { retry_after_seconds, .. } => {
                Self::UpstreamOverloaded { message, retry_after_seconds }
            }
            UpstreamError::NoConnection { .. } => Self::NoConnection(message),
            _ => Self::Upstream(message),
        }
    }
}

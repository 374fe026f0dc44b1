//! The queries that an engine elsewhere answers, as a trait that the transport implements.
//!
//! Cancellation: dropping a future or a stream must cancel its request, so that the engine stops computing.

use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use ntl_core::contract::{EngineError, LogitsRequest, NextTokenReport};
use ntl_core::sampling::SamplingParams;
use serde_json::{Map, Value};

use super::meter::{EngineMeter, EngineUsage};

/// A query for the distribution of the token after `prompt` and `path`.
#[derive(Debug, Clone, PartialEq)]
pub struct NextTokenQuery {
    /// Shared by all queries of a job. Never empty.
    pub prompt: Arc<[u32]>,
    /// Ids after the prompt.
    pub path: Vec<u32>,
    /// * `Ids`: these ids (ascending). If the engine cannot report given ids, the most probable ones, as many
    ///   as it can.
    /// * `All`: the most probable ids, as many as the engine can report at reasonable cost.
    /// * `Best`: the most probable id is enough.
    ///
    /// The answer may always report more ids, or fewer.
    pub wanted: LogitsRequest,
    /// The answer may have fewer steps, also none.
    pub ahead: Ahead,
}

/// Tokens that the engine appends to a path, with a report after each of them: it computes them with
/// `max_tokens: 1 + tokens` and temperature 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    pub tokens: usize,
    /// Each is the most probable one of these ids (ascending), if the engine can choose among some. `None`
    /// means of all ids.
    pub among: Option<Arc<[u32]>>,
}

impl Ahead {
    pub const NONE: Self = Self::greedy(0);

    pub const fn greedy(tokens: usize) -> Self {
        Self { tokens, among: None }
    }
}

/// The answer to one [`NextTokenQuery`].
#[derive(Debug, Clone, PartialEq)]
pub struct NextTokenAnswer {
    pub report: NextTokenReport,
    /// At most [`Ahead::tokens`] steps. Each continues the path of the one before it.
    pub ahead: Vec<NextTokenStep>,
}

/// A token that the engine appended, and the distribution of the token after it.
#[derive(Debug, Clone, PartialEq)]
pub struct NextTokenStep {
    pub token: u32,
    pub report: NextTokenReport,
}

/// The job that queries belong to.
#[derive(Debug, Clone)]
pub struct QueryContext {
    /// Clients share the requests to the engine round-robin.
    pub client: u64,
    /// Queries of one job have the same number. Sending them to the same replica uses its prefix cache.
    pub affinity: u64,
    /// Prompts may use each other's cached prefixes only if their salts are equal.
    pub cache_salt: u64,
    /// Whether no other job runs, so that this one may use the whole engine.
    pub is_alone: bool,
    /// Whether a report without one of the wanted ids is of no use, even if the id is improbable.
    pub needs_all_ids: bool,
    /// The response is of no use after this.
    pub deadline: Option<Instant>,
    /// Counts each request.
    pub meter: EngineMeter,
}

/// Text to write after a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct TextQuery {
    /// Shared by all queries of a job.
    pub prompt: Arc<[u32]>,
    /// Ids after the prompt.
    pub path: Vec<u32>,
    pub sampling: SamplingParams,
    /// Distinguishes the random numbers of several texts with the same `sampling.seed`.
    pub stream: u64,
    pub max_tokens: usize,
    /// The text ends with the first occurrence of this string.
    pub stop: Option<String>,
    /// The ids (ascending) that it may consist of. `None` means all ids.
    pub among: Option<Arc<[u32]>>,
}

impl TextQuery {
    /// A seed whose lower 32 bits and upper 63 bits also differ between streams.
    pub fn seed(&self) -> u64 {
        seed(self.sampling.seed, self.stream)
    }
}

/// Returns the seed of a stream. Streams have different lower 32 bits and upper bits.
fn seed(seed: u64, stream: u64) -> u64 {
    /// Any odd number has this property for the lower bits. This one is 2^64 divided by the golden ratio, so
    /// that multiples of it are also far from each other.
    const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;
    seed.wrapping_add(stream.wrapping_mul(STRIDE))
}

/// A request for one answer of a chat.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatQuery {
    /// The messages, and further fields for the engine. Shared by all answers of a job.
    pub chat: Arc<Map<String, Value>>,
    pub max_tokens: usize,
    pub seed: u64,
    /// Distinguishes the random numbers of several answers with the same `seed`.
    pub stream: u64,
}

impl ChatQuery {
    /// A seed of 31 bits: some engines read a signed number of 32 bits.
    pub fn seed(&self) -> u64 {
        seed(self.seed, self.stream) >> 33
    }
}

/// An answer of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatAnswer {
    /// Without reasoning.
    pub text: String,
    pub end: ChatEnd,
    pub usage: EngineUsage,
}

/// The reason why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatEnd {
    Complete,
    /// At a limit of tokens, or for an unknown reason.
    Cut,
    /// The engine called a tool, or filtered the text.
    Refused,
    /// The engine failed, maybe because of this answer.
    Lost(EngineError),
}

/// The next part of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextDelta {
    /// Text before the stop string. It can no longer change.
    pub text: String,
    /// All ids that the engine wrote since the last delta, including the ids that hold the stop string. The
    /// last id may hold characters after the stop string as well.
    pub ids: Vec<u32>,
    /// Set in the last delta.
    pub end: Option<TextEnd>,
}

/// The reason why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextEnd {
    /// The stop string.
    StopString,
    /// The end of sequence.
    EndOfSequence,
    /// `max_tokens`.
    Length,
}

/// An engine that reports next-token probabilities. A transport implements it over HTTP.
///
/// Errors: `EngineError::UpstreamRejected` if the engine rejects a request (status 400),
/// `EngineError::UpstreamTimeout` if it does not respond in time, and `EngineError::Upstream` for everything
/// else.
pub trait NextTokens: Send + Sync + 'static {
    /// Returns one answer for each query, in their order.
    fn ask(
        &self,
        context: QueryContext,
        queries: Vec<NextTokenQuery>,
    ) -> BoxFuture<'_, Result<Vec<NextTokenAnswer>, EngineError>>;

    /// How often the weights of the model were found to have changed.
    fn weight_changes(&self) -> u64 {
        0
    }

    /// Fails if the engine cannot write a text with these settings among given tokens ([`TextQuery::among`]).
    fn check_choices(&self, _sampling: &SamplingParams) -> Result<(), EngineError> {
        Ok(())
    }

    /// Writes text. The last item is a delta with an end, or an error.
    fn write(&self, context: QueryContext, query: TextQuery)
    -> BoxStream<'_, Result<TextDelta, EngineError>>;

    /// Returns an answer of a chat, sampled at temperature 1 or, if the engine takes none, at its default.
    fn chat(
        &self,
        context: QueryContext,
        query: ChatQuery,
    ) -> BoxFuture<'_, Result<ChatAnswer, EngineError>> {
        let _ = (context, query);
        let error = EngineError::Unsupported("this engine answers no chats".to_owned());
        Box::pin(std::future::ready(Err(error)))
    }
}

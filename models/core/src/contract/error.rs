//! Why a model or an engine gave no answer.

use super::ids::{ContextId, NodeId};
use crate::guide::GuideError;
use crate::logits::LogitsShape;

/// A failed model call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    #[error(transparent)]
    LogitsShape(#[from] LogitsShape),
    /// The context was never opened, or is closed.
    #[error("context {} is not open", .0.0)]
    UnknownContext(ContextId),
    #[error("the prompt of context {} is not computed completely", .0.0)]
    NotPrefilled(ContextId),
    /// A row extends a node that does not exist (yet).
    #[error("node {} of context {} does not exist", .node.0, .context.0)]
    UnknownNode { context: ContextId, node: NodeId },
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    TokenOutOfRange { id: u32, vocab: usize },
    /// `position` counts from 0.
    #[error("position {position} is beyond the model's {max}")]
    PositionOutOfRange { position: usize, max: usize },
    /// The adapter was read for another model.
    #[error("the adapter belongs to another model")]
    ForeignAdapter,
    #[error("token id {id} stands for a number, which is missing")]
    NumberMissing { id: u32 },
    /// The tensor library reported an error.
    #[error("model computation failed")]
    Compute(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The model's device cannot compute in this process any more.
    #[error("the device cannot be used any more")]
    DeviceLost(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why a job produced no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error("prompt has {got} tokens, the model takes at most {max}")]
    PromptTooLong { got: usize, max: usize },
    /// `answer`: most tokens of the answer.
    #[error(
        "prompt has {prompt} tokens and the answer may have {answer}, the model takes at most {max} together"
    )]
    ContextTooLong { prompt: usize, answer: usize, max: usize },
    /// The queue is full.
    #[error("{waiting} requests are waiting already")]
    Overloaded { waiting: usize },
    /// The engine's thread is gone.
    #[error("the engine is not running")]
    Dead,
    #[error("no answer within the deadline of {after_ms} ms")]
    Deadline { after_ms: u64 },
    /// The job waited too long in the queue.
    #[error("no room within {after_ms} ms")]
    QueueTimeout { after_ms: u64 },
    /// The job needs at worst more memory than the cache has.
    #[error(
        "the request may need {needs} bytes of cache, the server has {max}; request fewer or shorter texts"
    )]
    TooLarge { needs: u64, max: u64 },
    /// The client did not read the events of the job.
    #[error("the answer was not read for {after_ms} ms")]
    Unread { after_ms: u64 },
    #[error("guided decoding failed: {0}")]
    Guide(#[from] GuideError),
    /// The engine on another server rejects a request that the client caused.
    #[error("{0}")]
    UpstreamRejected(String),
    /// The engine on another server has too much to do. `retry_after_seconds`: how long it asks to wait.
    #[error("{message}")]
    UpstreamOverloaded { message: String, retry_after_seconds: Option<u32> },
    /// The engine on another server is unreachable, fails, or its response is not understood.
    #[error("{0}")]
    Upstream(String),
    /// This process has no descriptor, port or memory left for a connection to an engine on another server.
    #[error("{0}")]
    NoConnection(String),
    /// The engine on another server did not respond in time.
    #[error("{0}")]
    UpstreamTimeout(String),
    /// The engine cannot compute this.
    #[error("{0}")]
    Unsupported(String),
    /// The device failed and stays unusable for this process.
    #[error("{0}")]
    DeviceLost(String),
    /// A step that held rows of this job failed.
    #[error("decoding failed: {0}")]
    Step(String),
}

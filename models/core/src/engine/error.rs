//! Why a model or an engine gave no answer. Knows nothing about HTTP.

use super::{ContextId, NodeId};
use crate::sampling::GuideError;

/// A failed model call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The logits do not form whole rows.
    #[error("{values} logits are no whole number of rows of {vocab}")]
    LogitsShape {
        /// How many numbers there were.
        values: usize,
        /// How wide a row is.
        vocab: usize,
    },
    /// The context was never opened, or is closed.
    #[error("context {} is not open", .0.0)]
    UnknownContext(ContextId),
    /// A row extends a node that does not exist (yet).
    #[error("node {} of context {} does not exist", .node.0, .context.0)]
    UnknownNode {
        /// The context of the row.
        context: ContextId,
        /// The missing parent.
        node: NodeId,
    },
    /// A token id that the embedding table does not hold.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Size of the embedding table.
        vocab: usize,
    },
    /// A row stands beyond the last position that the model knows.
    #[error("position {position} is beyond the model's {max}")]
    PositionOutOfRange {
        /// The position, counted from 0.
        position: usize,
        /// How many there are.
        max: usize,
    },
    /// A token that stands for a number came without one.
    #[error("token id {id} stands for a number, which is missing")]
    NumberMissing {
        /// The id.
        id: u32,
    },
    /// The tensor library reported an error.
    #[error("model computation failed")]
    Compute(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why a job produced no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The prompt exceeds what the model takes.
    #[error("prompt has {got} tokens, the model takes at most {max}")]
    PromptTooLong {
        /// Tokens in the prompt.
        got: usize,
        /// The model's limit.
        max: usize,
    },
    /// Prompt and answer together exceed what the model takes.
    #[error(
        "prompt has {prompt} tokens and the answer may have {answer}, the model takes at most {max} together"
    )]
    ContextTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Most tokens of the answer.
        answer: usize,
        /// The model's limit.
        max: usize,
    },
    /// The queue is full.
    #[error("{waiting} requests are waiting already")]
    Overloaded {
        /// How many are in the queue.
        waiting: usize,
    },
    /// The engine thread is gone.
    #[error("the engine is not running")]
    Dead,
    /// The job's deadline passed.
    #[error("no answer within the deadline of {after_ms} ms")]
    Deadline {
        /// How long the job may take in all.
        after_ms: u64,
    },
    /// The job waited too long for its turn.
    #[error("no room within {after_ms} ms")]
    QueueTimeout {
        /// How long jobs may wait.
        after_ms: u64,
    },
    /// The job may need more memory than there is for all.
    #[error(
        "the request may need {needs} bytes of cache, the server has {max}; ask for fewer or shorter texts"
    )]
    TooLarge {
        /// What it needs at worst.
        needs: u64,
        /// What there is.
        max: u64,
    },
    /// The text cannot keep to what was asked of it.
    #[error("guided decoding failed: {0}")]
    Guide(#[from] GuideError),
    /// A step that held rows of this job failed.
    #[error("decoding failed: {0}")]
    Step(String),
}

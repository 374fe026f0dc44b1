//! What an engine reports for metrics.

use std::time::Duration;

use ntl_core::engine::FinishReason;

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// End of sequence, a stop string or a complete number.
    Stop,
    /// `max_tokens`.
    Length,
    /// The client cancelled the request.
    Abort,
    /// The model failed.
    Error,
    /// The deadline passed.
    Deadline,
}

impl From<FinishReason> for EndReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}

/// Called on the engine's thread; implementations must return quickly.
pub trait EngineObserver: Send + Sync {
    /// Number of queued sequences and of sequences that are being decoded.
    fn on_load(&self, _queued: usize, _running: usize) {}
    /// A job left the queue after this time.
    fn on_start(&self, _queue_time: Duration) {}
    /// A prompt was opened: tokens that a cached prefix already covered, and tokens that were computed.
    fn on_open(&self, _cached_tokens: usize, _computed_tokens: usize) {}
    fn on_step(&self, _rows: usize) {}
    /// One step decoded so many tokens of a text, this long after the tokens of the same text before them.
    fn on_tokens(&self, _tokens: usize, _since_last: Duration) {}
    /// A sequence ended.
    fn on_end(&self, _reason: EndReason) {}
    /// A call into the model or a decoding panicked. Its requests failed; the engine goes on.
    fn on_panic(&self) {}
}

/// Ignores every report.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl EngineObserver for NoObserver {}

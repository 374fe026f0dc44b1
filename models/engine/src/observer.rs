//! Events that an engine reports for metrics.

use std::time::Duration;

use ntl_core::contract::FinishReason;

/// The reason why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The end-of-sequence token, a stop string or a complete number.
    Stop,
    /// The sequence reached `max_tokens`.
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
    /// Reports the number of queued sequences and the number of sequences that are being decoded.
    fn on_load(&self, _queued: usize, _running: usize) {}
    /// Reports that a job left the queue after `queue_time`.
    fn on_start(&self, _queue_time: Duration) {}
    /// Reports the prefill of a prompt: the tokens that a cached prefix covered, and the tokens that were
    /// computed.
    fn on_open(&self, _cached_tokens: usize, _computed_tokens: usize) {}
    fn on_step(&self, _rows: usize) {}
    /// Reports that one step decoded `tokens` tokens of a text, `since_last` after the previous tokens of the
    /// same text.
    fn on_tokens(&self, _tokens: usize, _since_last: Duration) {}
    /// Reports that a sequence ended.
    fn on_end(&self, _reason: EndReason) {}
    /// Reports that a call into the model or a decoding panicked. Its requests failed, and the engine
    /// continues.
    fn on_panic(&self) {}
}

/// Ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl EngineObserver for NoObserver {}

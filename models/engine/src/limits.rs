//! How much an engine takes on at once.

use std::num::NonZeroUsize;
use std::time::Duration;

/// Limits of one engine. A sequence is one text or number; a job has as many as it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Sequences that may wait; the engine refuses more.
    pub queue_max: usize,
    /// How long a request may wait until its first job begins; `None` waits until its deadline.
    pub queue_time_max: Option<Duration>,
    /// Sequences that are decoded at the same time. One job always runs, however many it has.
    pub running_max: usize,
    /// Rows of one step.
    pub step_rows_max: usize,
    /// Prompt tokens that are opened between two steps, so that a long prompt delays running requests only so much. One
    /// prompt is always opened, however long it is.
    pub open_tokens_max: usize,
    /// Bytes of all contexts, as far as the model knows their cost. The engine refuses a text that may need more alone, and
    /// cuts the node budget of a tree to what fits. When the cache is full, trees that outgrew their expected size take
    /// turns, so that at most one tree's budget is held beyond the limit.
    pub cache_bytes_max: u64,
    /// Compute threads.
    pub threads: NonZeroUsize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            queue_time_max: None,
            running_max: 256,
            step_rows_max: 128,
            open_tokens_max: 4096,
            cache_bytes_max: 4 << 30,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

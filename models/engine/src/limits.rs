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
    /// Sequences that are decoded at the same time; those of clients that do not read are not counted. A quarter is reserved
    /// for clients that have nothing running. A job with more sequences than the other three quarters counts as those.
    pub running_max: usize,
    /// Rows of one step.
    pub step_rows_max: usize,
    /// Bytes of an engine that shares its memory with no other: contexts, number trees and prefix cache. A quarter is reserved
    /// for clients that have nothing running. The engine refuses a text that may need more than the rest alone, and cuts the node
    /// budget of a tree to what fits. A tree that outgrows its expected size while the memory is full starts again later,
    /// with its whole budget reserved.
    pub cache_bytes_max: u64,
    /// How long a client may leave the events of a job unread that cannot go on before it has read some.
    pub unread_time_max: Duration,
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
            cache_bytes_max: 4 << 30,
            unread_time_max: Duration::from_secs(30),
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

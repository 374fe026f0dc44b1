//! Limits of an engine's concurrent work.

use std::num::NonZeroUsize;
use std::time::Duration;

use ntl_core::contract::{EngineError, Job};

/// Limits of one engine. A sequence is one text or number. A job may have several sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Maximum number of queued sequences; the engine rejects further ones.
    pub queue_max: usize,
    /// Maximum time from a request's arrival to the start of its first job; `None` waits until its deadline.
    pub queue_time_max: Option<Duration>,
    /// Maximum number of concurrently decoded sequences, not counting stalled ones. A quarter is reserved for
    /// clients without running jobs. A job with more sequences than the other three quarters is charged only
    /// for those three quarters.
    pub running_max: usize,
    /// Maximum number of rows in one step.
    pub step_rows_max: usize,
    /// Approximate maximum time of one prefill while several clients use the engine; twice this time while
    /// one does. The rest of a longer prompt follows after the next step.
    pub prefill_time_max: Duration,
    /// Memory of an engine that shares it with no other engine, in bytes: contexts, number trees and prefix
    /// cache. A quarter is reserved for clients without running jobs. The engine rejects a text that alone
    /// may need more than the rest, and reduces the node budget of a tree to the memory. If a tree outgrows
    /// its expected size while the memory is full, it is preempted and restarted later with its whole budget
    /// reserved.
    pub cache_bytes_max: u64,
    /// Maximum time for which a client may stall a job by leaving its events unread.
    pub unread_time_max: Duration,
    /// Number of compute threads.
    pub threads: NonZeroUsize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            queue_time_max: None,
            running_max: 256,
            step_rows_max: 128,
            prefill_time_max: Duration::from_millis(50),
            cache_bytes_max: 4 << 30,
            unread_time_max: Duration::from_secs(30),
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// Reduces a job's node budget to `max` bytes; `bytes` is the memory of a job that decodes a number of nodes.
/// Fails if the job cannot run at all.
pub(crate) fn limit_to_memory(
    job: &mut Job,
    max: u64,
    bytes: impl Fn(&Job, usize) -> u64,
) -> Result<(), EngineError> {
    if bytes(job, job.nodes_max()) > max {
        let mut fits = 0;
        let mut exceeds = job.nodes_max();
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            let side = if bytes(job, middle) > max { &mut exceeds } else { &mut fits };
            *side = middle;
        }
        job.limit_nodes(fits);
    }
    let needs = bytes(job, job.nodes_max());
    if needs > max { Err(EngineError::TooLarge { needs, max }) } else { Ok(()) }
}

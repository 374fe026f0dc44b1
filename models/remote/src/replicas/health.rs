//! Health checks: each replica is checked from time to time, and more often while it is unavailable.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::ReplicaPool;
use crate::client::UpstreamError;

/// Time between two checks of a replica that is unavailable.
const INTERVAL_DOWN: Duration = Duration::from_secs(1);

/// An available replica counts as unavailable after this many failed checks in a row: an engine that is busy
/// may miss one.
const FAILURES_MAX: u32 = 2;

/// One check of a replica.
pub(crate) trait Check: Send + Sync + 'static {
    /// Checks a replica that answered the last time. `number`: how many checks came before.
    fn alive(
        &self,
        pool: &ReplicaPool,
        index: usize,
        number: u64,
    ) -> impl Future<Output = Result<(), UpstreamError>> + Send;

    /// Checks a replica that did not: it may have been started again with another model.
    fn same_model(
        &self,
        pool: &ReplicaPool,
        index: usize,
    ) -> impl Future<Output = Result<(), UpstreamError>> + Send;
}

/// Checks one replica until the pool is dropped, each `interval` while it is available.
pub(crate) async fn supervise(pool: Weak<ReplicaPool>, index: usize, check: impl Check, interval: Duration) {
    let mut failures = 0;
    for number in 0.. {
        let Some(was_up) = pool.upgrade().map(|pool| pool.is_up(index)) else { return };
        tokio::time::sleep(if was_up { interval } else { interval.min(INTERVAL_DOWN) }).await;
        let Some(pool) = pool.upgrade() else { return };
        let result = if was_up {
            check.alive(&pool, index, number).await
        } else {
            check.same_model(&pool, index).await
        };
        match result {
            Ok(()) => {
                failures = 0;
                // A request may have failed while an available replica was checked. Then the next check, of
                // its model, decides.
                if !was_up && pool.set_up(index, true, Instant::now()) {
                    tracing::info!(replica = %pool.base(index), "a replica is available again");
                }
            }
            // Nothing is known about the replica.
            Err(error) if error.is_local() => tracing::debug!(%error, "a replica was not checked"),
            Err(error) => {
                failures += 1;
                if (failures >= FAILURES_MAX || error.is_other_model())
                    && pool.set_up(index, false, Instant::now())
                {
                    tracing::warn!(%error, "a replica is unavailable");
                }
            }
        }
    }
}

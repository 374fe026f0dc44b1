//! Work that would hold up the threads of the runtime: reading long bodies, chat templates, tokenizing,
//! compiling constraints.
//!
//! Invariant: at most as many pieces of such work run at the same time as there are processors, so that its
//! memory is bounded and the engines keep their share. Others wait, and are refused after [`WAIT_MAX`].

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use std::time::Duration;

use ntl_core::contract::EngineError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::AppError;

/// Work on up to this many bytes runs inline, in well under a millisecond.
const INLINE_BYTES_MAX: usize = 4096;

/// Maximum wait for permits that other requests hold.
const WAIT_MAX: Duration = Duration::from_secs(60);

static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let processors = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Arc::new(Semaphore::new(processors.get()))
});

/// Runs `work`, which processes `bytes` bytes: inline if they are few, otherwise on the blocking thread pool.
pub(crate) async fn run_blocking<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, AppError> + Send + 'static,
) -> Result<T, AppError> {
    if bytes <= INLINE_BYTES_MAX {
        return work();
    }
    let place = acquire(&PLACES, 1).await?;
    let work = move || {
        // The work continues if the client disconnects, and keeps its permit.
        let _place = place;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The panic layer counts the panic and answers it.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(AppError::Draining),
    }
}

/// Waits for this many permits, in the order of arrival.
///
/// # Errors
/// When they have not become free in [`WAIT_MAX`].
pub(crate) async fn acquire(permits: &Arc<Semaphore>, count: u32) -> Result<OwnedSemaphorePermit, AppError> {
    let acquired = tokio::time::timeout(WAIT_MAX, Arc::clone(permits).acquire_many_owned(count)).await;
    let after_ms = u64::try_from(WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
    let acquired = acquired.map_err(|_| EngineError::QueueTimeout { after_ms })?;
    acquired.map_err(|_| AppError::Draining)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn as_much_work_runs_at_once_as_there_are_processors() {
        let processors = available_parallelism().unwrap().get();
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let together = Arc::new(Barrier::new(processors));
        let tasks: Vec<_> = (0..8 * processors)
            .map(|_| {
                let (running, most, together) =
                    (Arc::clone(&running), Arc::clone(&most), Arc::clone(&together));
                tokio::spawn(run_blocking(usize::MAX, move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    together.wait();
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                }))
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), processors);
    }
}

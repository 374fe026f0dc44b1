//! Work that would hold up the threads of the runtime: reading long bodies, chat templates, tokenizing,
//! compiling constraints.
//!
//! A client has at most as many pieces of such work running as there are processors, and all clients together
//! a quarter more. This bounds the memory, and a client with nothing running need not wait for another
//! client's work. Waiting clients are served round-robin. The work of a request that is gone does not start,
//! and ends at its next check ([`check_wanted`]).

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

use crate::error::AppError;
use crate::fair_permits::FairPermits;

/// Work on up to this many bytes runs inline, in well under a millisecond.
const INLINE_BYTES_MAX: usize = 4096;

static THREADS: LazyLock<Arc<FairPermits>> = LazyLock::new(|| {
    let processors = available_parallelism().unwrap_or(NonZeroUsize::MIN).get();
    FairPermits::new(processors + processors.div_ceil(4), processors)
});

thread_local! {
    /// Whether the request is gone whose work runs on this thread.
    static GONE: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Records, when it is dropped, that a request is gone.
struct GoneOnDrop(Arc<AtomicBool>);

impl Drop for GoneOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` of a client, which processes `bytes` bytes: inline if they are few, otherwise on the blocking
/// thread pool.
pub(crate) async fn run_blocking<T: Send + 'static>(
    client: u64,
    bytes: usize,
    work: impl FnOnce() -> Result<T, AppError> + Send + 'static,
) -> Result<T, AppError> {
    if bytes <= INLINE_BYTES_MAX {
        return work();
    }
    let permit = THREADS.acquire(client, 1).await?;
    let gone = Arc::new(AtomicBool::new(false));
    let _gone_on_drop = GoneOnDrop(Arc::clone(&gone));
    let task = tokio::task::spawn_blocking(move || {
        // Work that still runs when its client is gone keeps its permit.
        let _permit = permit;
        GONE.set(Some(gone));
        check_wanted()?;
        work()
    });
    match task.await {
        Ok(result) => result,
        // The panic layer counts the panic and answers it.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(AppError::Draining),
    }
}

/// Returns whether the request is gone for which [`run_blocking`] runs on this thread.
pub(crate) fn is_gone() -> bool {
    GONE.with_borrow(|gone| gone.as_ref().is_some_and(|gone| gone.load(Ordering::Relaxed)))
}

/// Ends the work of a request that is gone, whose error is not read. Work of several parts calls this before
/// each.
pub(crate) fn check_wanted() -> Result<(), AppError> {
    if is_gone() { Err(AppError::Internal) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use futures::FutureExt;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_has_as_much_work_running_as_there_are_processors_and_others_do_not_wait_for_it() {
        let processors = available_parallelism().unwrap().get();
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let together = Arc::new(Barrier::new(processors + 1));
        let tasks: Vec<_> = (0..8 * processors)
            .map(|_| {
                let (running, most, together) =
                    (Arc::clone(&running), Arc::clone(&most), Arc::clone(&together));
                tokio::spawn(run_blocking(1, usize::MAX, move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    together.wait();
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                }))
            })
            .collect();
        for _ in 0..8 {
            // The work of the first client ends only when the second one's has run.
            let together = Arc::clone(&together);
            run_blocking(2, usize::MAX, move || {
                together.wait();
                Ok(())
            })
            .await
            .unwrap();
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), processors);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_ends_at_its_next_check_once_its_request_is_gone() {
        let (began, begin) = mpsc::channel();
        let (dropped, drop_seen) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        let mut request = run_blocking(3, usize::MAX, move || {
            check_wanted()?;
            began.send(()).unwrap();
            drop_seen.recv().unwrap();
            ended.send(check_wanted().is_err()).unwrap();
            Ok(())
        })
        .boxed();
        while begin.try_recv().is_err() {
            assert!(request.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        drop(request);
        dropped.send(()).unwrap();
        assert!(end.recv().unwrap(), "the request is gone");
        assert!(run_blocking(3, usize::MAX, check_wanted).await.is_ok(), "the next one is not");
    }
}

//! Memory for jobs that are tasks instead of sequences of an engine's thread. They share [`CacheBudget`] with
//! all engines, and wait for it without blocking a thread.
//!
//! Invariant: a job reserves all of its memory together, so that no job waits for memory while it holds some.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ntl_core::contract::{EngineError, Job};
use tokio::sync::{Mutex, Notify};

use crate::budget::{CacheBudget, CacheUse, EngineBudget, MemoryGauge, Pool, Reservation};
use crate::limits::limit_to_memory;

/// The memory of the jobs of one model.
pub struct JobMemory {
    budget: EngineBudget,
    /// Maximum memory that one job may reserve, in bytes.
    job_bytes_max: u64,
    meter: MemoryGauge,
    /// Notified when memory that a job waits for may be free.
    freed: Arc<Notify>,
    /// Held by the job that waits for memory of the general pool. The others wait for it in their order, so
    /// that small jobs cannot starve a large one.
    turn: Mutex<()>,
    waiting: AtomicUsize,
}

/// Memory of one job. Dropping it releases the memory.
pub struct JobReservation {
    _memory: Reservation,
}

/// A job that waits for memory, until it is dropped.
struct WaitingJob<'a>(&'a JobMemory);

impl Drop for WaitingJob<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.budget.stop_waiting();
        }
    }
}

impl JobMemory {
    pub fn new(budget: &CacheBudget) -> Self {
        let freed = Arc::new(Notify::new());
        let wake = Arc::clone(&freed);
        let job_bytes_max = budget.job_bytes_max();
        let budget = budget.join(None, move || wake.notify_waiters());
        let meter = budget.meter();
        Self { budget, job_bytes_max, meter, freed, turn: Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    /// Reduces a job's node budget to the memory; `bytes` is the memory of a job that decodes a number of
    /// nodes.
    ///
    /// # Errors
    /// [`EngineError::TooLarge`] if the job cannot run at all.
    pub fn limit(&self, job: &mut Job, bytes: impl Fn(&Job, usize) -> u64) -> Result<(), EngineError> {
        limit_to_memory(job, self.job_bytes_max, bytes)
    }

    /// Reserves memory, and waits until there is enough. Only the first running job of a client may use the
    /// reserved pool.
    pub async fn reserve(&self, bytes: u64, is_first: bool) -> JobReservation {
        let bytes = bytes.min(self.job_bytes_max);
        let _turn = if is_first { None } else { Some(self.turn.lock().await) };
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = WaitingJob(self);
        loop {
            // Before the attempt, so that memory that becomes free in between is noticed.
            let freed = self.freed.notified();
            let mut memory = self.budget.reserve(Pool::General, bytes);
            if memory.is_none() && is_first {
                memory = self.budget.reserve(Pool::Reserved, bytes);
            }
            if let Some(memory) = memory {
                return JobReservation { _memory: memory };
            }
            freed.await;
        }
    }

    /// Returns the memory that the jobs use.
    pub fn cache_use(&self) -> CacheUse {
        self.meter.read()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns the memory, if a job does not have to wait for it now.
    fn poll(waiting: Pin<&mut impl Future<Output = JobReservation>>) -> Option<JobReservation> {
        match waiting.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(memory) => Some(memory),
            Poll::Pending => None,
        }
    }

    #[test]
    fn jobs_wait_in_their_order_and_the_first_job_of_a_client_has_the_reserve() {
        let budget = CacheBudget::new(100);
        let memory = JobMemory::new(&budget);
        let held = poll(pin!(memory.reserve(70, false))).unwrap();
        let mut large = pin!(memory.reserve(75, false));
        let mut small = pin!(memory.reserve(5, false));
        assert!(poll(large.as_mut()).is_none() && poll(small.as_mut()).is_none());
        let first = poll(pin!(memory.reserve(25, true))).unwrap();
        assert_eq!(memory.cache_use().running, 95);
        assert!(poll(pin!(memory.reserve(25, true))).is_none());
        drop(first);
        assert!(poll(large.as_mut()).is_none());
        drop(held);
        drop(poll(large.as_mut()).unwrap());
        assert!(poll(small.as_mut()).is_some());
    }

    #[test]
    fn a_job_that_no_longer_waits_lets_other_engines_have_the_memory() {
        let budget = CacheBudget::new(100);
        let [one, other] = [JobMemory::new(&budget), JobMemory::new(&budget)];
        let _held = poll(pin!(one.reserve(70, false))).unwrap();
        let mut behind = pin!(other.reserve(5, false));
        {
            let mut waits = pin!(one.reserve(75, false));
            assert!(poll(waits.as_mut()).is_none() && poll(behind.as_mut()).is_none());
        }
        assert!(poll(behind.as_mut()).is_some());
    }
}

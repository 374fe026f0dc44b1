//! The memory of all engines in a process: one limit for running requests and prefix caches.
//!
//! Engines reserve memory for a job before it starts and before it grows. Two pools divide the memory: the
//! general pool has three quarters and admits any job. The reserved pool has one quarter and admits only jobs
//! of clients without running jobs. Prefix caches use the unreserved memory. They are evicted when a
//! reservation needs it. Engines that wait for memory get it in the order in which they started to wait.
//!
//! Invariant: the reservations in a pool never exceed the pool, and prefix caches never exceed the remaining
//! memory.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ntl_core::contract::EvictableCache;

/// The pool from which a job reserves memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pool {
    /// Memory for any job.
    General,
    /// Memory reserved for jobs of clients without running jobs.
    Reserved,
}

/// The memory that several engines share. Clones refer to the same memory.
#[derive(Clone)]
pub struct CacheBudget {
    bytes_max: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    general: u64,
    reserved: u64,
    engines: Vec<EngineMemory>,
    /// Engines with a job that waits for general memory.
    waiting: VecDeque<usize>,
    /// Engines with a job that waits for memory of the reserved pool.
    reserved_waiting: BTreeSet<usize>,
}

struct EngineMemory {
    reserved: u64,
    cache: Option<Arc<dyn EvictableCache>>,
    /// Wakes the engine's thread.
    wake: Box<dyn Fn() + Send>,
}

/// Memory that one engine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheUse {
    /// Bytes reserved for running jobs.
    pub running: u64,
    /// Bytes in the prefix cache.
    pub prefixes: u64,
}

/// An engine's access to the memory. When it is dropped, the engine no longer waits for memory.
pub(crate) struct EngineBudget {
    budget: CacheBudget,
    engine: usize,
}

/// Reads the memory use of one engine, for metrics.
#[derive(Clone)]
pub(crate) struct MemoryGauge {
    budget: CacheBudget,
    engine: usize,
}

/// Memory reserved for one job. Dropping it releases the memory.
pub(crate) struct Reservation {
    budget: CacheBudget,
    engine: usize,
    pool: Pool,
    bytes: u64,
}

impl fmt::Debug for CacheBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheBudget").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl CacheBudget {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, state: Arc::default() }
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns the maximum number of bytes that one job can reserve.
    pub fn job_bytes_max(&self) -> u64 {
        self.pool_max(Pool::General)
    }

    fn pool_max(&self, pool: Pool) -> u64 {
        let reserved = self.bytes_max / 4;
        match pool {
            Pool::General => self.bytes_max - reserved,
            Pool::Reserved => reserved,
        }
    }

    /// Adds an engine. `wake` is called when the memory that the engine waits for may be free.
    pub(crate) fn join(
        &self,
        cache: Option<Arc<dyn EvictableCache>>,
        wake: impl Fn() + Send + 'static,
    ) -> EngineBudget {
        let mut state = self.lock();
        state.engines.push(EngineMemory { reserved: 0, cache, wake: Box::new(wake) });
        EngineBudget { budget: self.clone(), engine: state.engines.len() - 1 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pool(&mut self, pool: Pool) -> &mut u64 {
        match pool {
            Pool::General => &mut self.general,
            Pool::Reserved => &mut self.reserved,
        }
    }

    /// Evicts prefixes until the caches fit into the unreserved part of `bytes_max`.
    fn evict(&self, bytes_max: u64) {
        let caches = self.engines.iter().filter_map(|engine| engine.cache.as_ref());
        let held: u64 = caches.clone().map(|cache| cache.bytes()).sum();
        let mut excess = (self.general + self.reserved + held).saturating_sub(bytes_max);
        for cache in caches {
            if excess == 0 {
                return;
            }
            let before = cache.bytes();
            cache.evict(excess);
            excess = excess.saturating_sub(before.saturating_sub(cache.bytes()));
        }
    }

    fn wait(&mut self, engine: usize, pool: Pool) {
        match pool {
            Pool::General if !self.waiting.contains(&engine) => self.waiting.push_back(engine),
            Pool::General => {}
            Pool::Reserved => {
                self.reserved_waiting.insert(engine);
            }
        }
    }

    /// Wakes the engines that may continue with memory of `pool`.
    fn wake(&self, pool: Pool) {
        match pool {
            Pool::General => self.wake_engines(self.waiting.front()),
            Pool::Reserved => self.wake_engines(&self.reserved_waiting),
        }
    }

    fn wake_engines<'a>(&self, indices: impl IntoIterator<Item = &'a usize>) {
        for &index in indices {
            if let Some(engine) = self.engines.get(index) {
                (engine.wake)();
            }
        }
    }

    /// Removes an engine from the waiting engines, so that the next one can get memory.
    fn stop_waiting(&mut self, engine: usize) {
        self.reserved_waiting.remove(&engine);
        let was_first = self.waiting.front() == Some(&engine);
        self.waiting.retain(|&waiting| waiting != engine);
        if was_first {
            self.wake(Pool::General);
        }
    }
}

impl EngineBudget {
    /// Returns a meter of the engine's memory use.
    pub(crate) fn meter(&self) -> MemoryGauge {
        MemoryGauge { budget: self.budget.clone(), engine: self.engine }
    }

    /// Reserves memory for a job, if its pool has enough. Otherwise, the engine waits: it is woken when
    /// memory of the pool is released. An engine cannot reserve general memory while another engine waits for
    /// it.
    pub(crate) fn reserve(&self, pool: Pool, bytes: u64) -> Option<Reservation> {
        let mut state = self.budget.lock();
        let is_next = state.waiting.front().is_none_or(|&first| first == self.engine);
        let fits = *state.pool(pool) + bytes <= self.budget.pool_max(pool);
        if !(fits && (is_next || pool == Pool::Reserved)) {
            state.wait(self.engine, pool);
            return None;
        }
        self.budget.take(&mut state, self.engine, pool, bytes);
        Some(Reservation { budget: self.budget.clone(), engine: self.engine, pool, bytes })
    }

    /// Marks the engine as no longer waiting for memory.
    pub(crate) fn stop_waiting(&self) {
        self.budget.lock().stop_waiting(self.engine);
    }

    /// Evicts prefixes until the prefix caches are within the limit.
    pub(crate) fn settle(&self) {
        self.budget.lock().evict(self.budget.bytes_max);
    }
}

impl Drop for EngineBudget {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.stop_waiting(self.engine);
        if let Some(engine) = state.engines.get_mut(self.engine) {
            // The model was dropped, and its prefix cache with it.
            engine.cache = None;
        }
    }
}

impl CacheBudget {
    fn take(&self, state: &mut State, engine: usize, pool: Pool, bytes: u64) {
        *state.pool(pool) += bytes;
        if let Some(engine) = state.engines.get_mut(engine) {
            engine.reserved += bytes;
        }
        state.evict(self.bytes_max);
    }
}

impl MemoryGauge {
    pub(crate) fn read(&self) -> CacheUse {
        let state = self.budget.lock();
        state.engines.get(self.engine).map_or(CacheUse::default(), |engine| CacheUse {
            running: engine.reserved,
            prefixes: engine.cache.as_ref().map_or(0, |cache| cache.bytes()),
        })
    }
}

impl Reservation {
    pub(crate) fn pool(&self) -> Pool {
        self.pool
    }

    /// Grows the reservation to at least `bytes`. Returns `false` if the pool does not have enough memory.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) else { return true };
        let mut state = self.budget.lock();
        if *state.pool(self.pool) + more > self.budget.pool_max(self.pool) {
            return false;
        }
        self.budget.take(&mut state, self.engine, self.pool, more);
        self.bytes = bytes;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        *state.pool(self.pool) -= self.bytes;
        if let Some(engine) = state.engines.get_mut(self.engine) {
            engine.reserved -= self.bytes;
        }
        state.wake(self.pool);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::*;

    struct Prefixes(AtomicU64);

    impl EvictableCache for Prefixes {
        fn bytes(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }
        fn evict(&self, bytes: u64) {
            let left = self.bytes().saturating_sub(bytes);
            self.0.store(left, Ordering::SeqCst);
        }
    }

    fn reserve(budget: &EngineBudget, bytes: u64) -> Option<Reservation> {
        budget.reserve(Pool::General, bytes)
    }

    #[test]
    fn engines_share_one_limit_and_a_quarter_is_reserved_for_clients_without_jobs() {
        let budget = CacheBudget::new(100);
        let one = budget.join(None, || ());
        let two = budget.join(None, || ());
        let held = reserve(&one, 50).unwrap();
        assert!(reserve(&two, 26).is_none());
        let other = reserve(&two, 25).unwrap();
        assert!(reserve(&one, 1).is_none());
        let from_reserved = two.reserve(Pool::Reserved, 25).unwrap();
        assert!(two.reserve(Pool::Reserved, 1).is_none());
        for budget in [&one, &two] {
            assert_eq!(budget.meter().read(), CacheUse { running: 50, prefixes: 0 });
        }
        drop((held, other, from_reserved));
        assert_eq!(two.meter().read(), CacheUse::default());
        one.stop_waiting();
        two.stop_waiting();
        assert!(reserve(&one, 75).is_some());
        assert!(reserve(&one, 76).is_none());
    }

    #[test]
    fn prefixes_of_every_engine_are_evicted_for_running_jobs() {
        let budget = CacheBudget::new(100);
        let caches = [60, 40].map(|bytes| Arc::new(Prefixes(AtomicU64::new(bytes))));
        let budgets = caches.clone().map(|cache| budget.join(Some(cache as Arc<dyn EvictableCache>), || ()));
        let mut held = reserve(&budgets[1], 30).unwrap();
        assert_eq!(caches.clone().map(|cache| cache.bytes()), [30, 40]);
        assert!(held.grow(75) && held.grow(10) && !held.grow(76));
        assert_eq!(caches.clone().map(|cache| cache.bytes()), [0, 25]);
        caches[0].0.store(9, Ordering::SeqCst);
        budgets[1].settle();
        assert_eq!(caches.clone().map(|cache| cache.bytes()), [0, 25]);
    }

    #[test]
    fn engines_get_memory_in_the_order_in_which_they_waited() {
        let budget = CacheBudget::new(100);
        let woken: [Arc<AtomicUsize>; 3] = std::array::from_fn(|_| Arc::default());
        let budgets = woken.clone().map(|woken| {
            budget.join(None, move || {
                woken.fetch_add(1, Ordering::SeqCst);
            })
        });
        let woken = || woken.each_ref().map(|woken| woken.load(Ordering::SeqCst));
        let held = reserve(&budgets[0], 65).unwrap();
        let small = reserve(&budgets[0], 5).unwrap();
        assert!(reserve(&budgets[1], 70).is_none());
        assert!(reserve(&budgets[2], 1).is_none(), "the second engine is ahead of it");
        assert!(budgets[2].reserve(Pool::Reserved, 1).is_some());
        drop(small);
        assert_eq!(woken(), [0, 1, 0]);
        drop(held);
        let large = reserve(&budgets[1], 70).unwrap();
        budgets[1].stop_waiting();
        assert_eq!(woken(), [0, 2, 1], "the third engine is woken last");
        assert!(reserve(&budgets[2], 5).is_some());
        drop((large, budgets));
    }
}

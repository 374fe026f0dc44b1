//! The memory of all engines of a process: one bound over running requests and prefix caches.
//!
//! Engines reserve memory for a job before it runs and before it grows. Two pools divide the bound: three quarters are for any
//! job, one quarter is reserved for jobs of clients that have nothing running. Prefix caches use what is not reserved, and are
//! evicted where a reservation needs the room. Engines that wait for memory get it in their order.
//!
//! Invariant: reservations of a pool are never more than the pool, and prefix caches fill no more than the rest.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ntl_core::engine::EvictableCache;

/// Which part of the memory a job is admitted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pool {
    /// For any job.
    General,
    /// For jobs of clients that have nothing running.
    Newcomers,
}

/// The memory of all engines that share it. Clones are the same memory.
#[derive(Clone)]
pub struct CacheBudget {
    bytes_max: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    general: u64,
    newcomers: u64,
    members: Vec<Member>,
    /// Engines with a job that waits for general memory.
    waiting: VecDeque<usize>,
    /// Engines with a job that waits for the memory of newcomers.
    newcomers_waiting: BTreeSet<usize>,
}

/// One engine.
struct Member {
    reserved: u64,
    cache: Option<Arc<dyn EvictableCache>>,
    /// Wakes the engine's thread.
    wake: Box<dyn Fn() + Send>,
}

/// What one engine holds of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheUse {
    /// Bytes that are reserved for running jobs.
    pub running: u64,
    /// Bytes of the prefix cache.
    pub prefixes: u64,
}

/// An engine's access to the memory. Dropping it ends its waiting.
pub(crate) struct Account {
    budget: CacheBudget,
    member: usize,
}

/// What one engine holds of the memory, for metrics.
#[derive(Clone)]
pub(crate) struct Meter {
    budget: CacheBudget,
    member: usize,
}

/// Memory that is reserved for one job; dropping it gives the memory back.
pub(crate) struct Reservation {
    budget: CacheBudget,
    member: usize,
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

    /// The most that one job can reserve.
    pub fn job_bytes_max(&self) -> u64 {
        self.pool_max(Pool::General)
    }

    fn pool_max(&self, pool: Pool) -> u64 {
        let newcomers = self.bytes_max / 4;
        match pool {
            Pool::General => self.bytes_max - newcomers,
            Pool::Newcomers => newcomers,
        }
    }

    /// Adds an engine. `wake` is called when memory that it waits for may be free.
    pub(crate) fn join(
        &self,
        cache: Option<Arc<dyn EvictableCache>>,
        wake: impl Fn() + Send + 'static,
    ) -> Account {
        let mut state = self.lock();
        state.members.push(Member { reserved: 0, cache, wake: Box::new(wake) });
        Account { budget: self.clone(), member: state.members.len() - 1 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pool(&mut self, pool: Pool) -> &mut u64 {
        match pool {
            Pool::General => &mut self.general,
            Pool::Newcomers => &mut self.newcomers,
        }
    }

    /// Evicts from prefix caches until they fit beside the reservations.
    fn evict(&self, bytes_max: u64) {
        let caches = self.members.iter().filter_map(|member| member.cache.as_ref());
        let held: u64 = caches.clone().map(|cache| cache.bytes()).sum();
        let mut excess = (self.general + self.newcomers + held).saturating_sub(bytes_max);
        for cache in caches {
            if excess == 0 {
                return;
            }
            let before = cache.bytes();
            cache.evict(excess);
            excess = excess.saturating_sub(before.saturating_sub(cache.bytes()));
        }
    }

    fn wait(&mut self, member: usize, pool: Pool) {
        match pool {
            Pool::General if !self.waiting.contains(&member) => self.waiting.push_back(member),
            Pool::General => {}
            Pool::Newcomers => {
                self.newcomers_waiting.insert(member);
            }
        }
    }

    /// Wakes the engines that may go on with memory of a pool.
    fn wake(&self, pool: Pool) {
        let first = self.waiting.front().filter(|_| pool == Pool::General);
        let newcomers = self.newcomers_waiting.iter().filter(|_| pool == Pool::Newcomers);
        for member in first.into_iter().chain(newcomers).filter_map(|&member| self.members.get(member)) {
            (member.wake)();
        }
    }

    /// Ends the waiting of an engine; the next one has its turn.
    fn stop_waiting(&mut self, member: usize) {
        self.newcomers_waiting.remove(&member);
        let was_first = self.waiting.front() == Some(&member);
        self.waiting.retain(|&waiting| waiting != member);
        if was_first {
            self.wake(Pool::General);
        }
    }
}

impl Account {
    /// Tells what the engine holds.
    pub(crate) fn meter(&self) -> Meter {
        Meter { budget: self.budget.clone(), member: self.member }
    }

    /// Reserves memory for a job, if its pool has as much. Else the engine waits: it is woken when memory of the pool was given
    /// back. General memory is refused while another engine waits for it.
    pub(crate) fn reserve(&self, pool: Pool, bytes: u64) -> Option<Reservation> {
        let mut state = self.budget.lock();
        let is_next = state.waiting.front().is_none_or(|&first| first == self.member);
        let fits = *state.pool(pool) + bytes <= self.budget.pool_max(pool);
        if !(fits && (is_next || pool == Pool::Newcomers)) {
            state.wait(self.member, pool);
            return None;
        }
        self.budget.take(&mut state, self.member, pool, bytes);
        Some(Reservation { budget: self.budget.clone(), member: self.member, pool, bytes })
    }

    /// Nothing waits for memory any more.
    pub(crate) fn stop_waiting(&self) {
        self.budget.lock().stop_waiting(self.member);
    }

    /// Evicts what the prefix caches have beyond the bound.
    pub(crate) fn settle(&self) {
        self.budget.lock().evict(self.budget.bytes_max);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.stop_waiting(self.member);
        if let Some(member) = state.members.get_mut(self.member) {
            // The model is gone, and its prefix cache with it.
            member.cache = None;
        }
    }
}

impl CacheBudget {
    fn take(&self, state: &mut State, member: usize, pool: Pool, bytes: u64) {
        *state.pool(pool) += bytes;
        if let Some(member) = state.members.get_mut(member) {
            member.reserved += bytes;
        }
        state.evict(self.bytes_max);
    }
}

impl Meter {
    pub(crate) fn read(&self) -> CacheUse {
        let state = self.budget.lock();
        state.members.get(self.member).map_or(CacheUse::default(), |member| CacheUse {
            running: member.reserved,
            prefixes: member.cache.as_ref().map_or(0, |cache| cache.bytes()),
        })
    }
}

impl Reservation {
    pub(crate) fn pool(&self) -> Pool {
        self.pool
    }

    /// Makes it at least `bytes`; false where the pool has no more.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) else { return true };
        let mut state = self.budget.lock();
        if *state.pool(self.pool) + more > self.budget.pool_max(self.pool) {
            return false;
        }
        self.budget.take(&mut state, self.member, self.pool, more);
        self.bytes = bytes;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        *state.pool(self.pool) -= self.bytes;
        if let Some(member) = state.members.get_mut(self.member) {
            member.reserved -= self.bytes;
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

    fn reserve(account: &Account, bytes: u64) -> Option<Reservation> {
        account.reserve(Pool::General, bytes)
    }

    #[test]
    fn engines_share_one_bound_and_a_quarter_of_it_is_for_newcomers() {
        let budget = CacheBudget::new(100);
        let (one, two) = (budget.join(None, || ()), budget.join(None, || ()));
        let held = reserve(&one, 50).unwrap();
        assert!(reserve(&two, 26).is_none());
        let other = reserve(&two, 25).unwrap();
        assert!(reserve(&one, 1).is_none());
        let newcomer = two.reserve(Pool::Newcomers, 25).unwrap();
        assert!(two.reserve(Pool::Newcomers, 1).is_none());
        for account in [&one, &two] {
            assert_eq!(account.meter().read(), CacheUse { running: 50, prefixes: 0 });
        }
        drop((held, other, newcomer));
        assert_eq!(two.meter().read(), CacheUse::default());
        one.stop_waiting();
        two.stop_waiting();
        assert!(reserve(&one, 75).is_some());
        assert!(reserve(&one, 76).is_none());
    }

    #[test]
    fn prefix_caches_of_every_engine_make_room_for_running_jobs() {
        let budget = CacheBudget::new(100);
        let caches = [60, 40].map(|bytes| Arc::new(Prefixes(AtomicU64::new(bytes))));
        let accounts = caches.clone().map(|cache| budget.join(Some(cache as Arc<dyn EvictableCache>), || ()));
        let mut held = reserve(&accounts[1], 30).unwrap();
        assert_eq!(caches.clone().map(|cache| cache.bytes()), [30, 40]);
        assert!(held.grow(75) && held.grow(10) && !held.grow(76));
        assert_eq!(caches.clone().map(|cache| cache.bytes()), [0, 25]);
        caches[0].0.store(9, Ordering::SeqCst);
        accounts[1].settle();
        assert_eq!(caches.clone().map(|cache| cache.bytes()), [0, 25]);
    }

    #[test]
    fn engines_get_memory_in_the_order_in_which_they_waited() {
        let budget = CacheBudget::new(100);
        let woken: [Arc<AtomicUsize>; 3] = std::array::from_fn(|_| Arc::default());
        let accounts = woken.clone().map(|woken| {
            budget.join(None, move || {
                woken.fetch_add(1, Ordering::SeqCst);
            })
        });
        let woken = || woken.each_ref().map(|woken| woken.load(Ordering::SeqCst));
        let (held, small) = (reserve(&accounts[0], 65).unwrap(), reserve(&accounts[0], 5).unwrap());
        assert!(reserve(&accounts[1], 70).is_none());
        assert!(reserve(&accounts[2], 1).is_none(), "the second engine came first");
        assert!(accounts[2].reserve(Pool::Newcomers, 1).is_some());
        drop(small);
        assert_eq!(woken(), [0, 1, 0]);
        drop(held);
        let large = reserve(&accounts[1], 70).unwrap();
        accounts[1].stop_waiting();
        assert_eq!(woken(), [0, 2, 1], "then it is the turn of the third");
        assert!(reserve(&accounts[2], 5).is_some());
        drop((large, accounts));
    }
}

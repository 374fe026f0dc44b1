//! Chooses the replica for the next request: the one that has the tree's prefix in its cache, otherwise the
//! available one with the fewest requests in flight.
//!
//! A replica that fails gets no requests until a health check succeeds. If no replica is available, requests
//! go to the one that failed first, so that an engine whose health checks fail for another reason still
//! works.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::client::{BaseUrl, Code};

/// Trees whose replica is remembered.
const AFFINITIES_MAX: usize = 4096;

/// Events of the replicas of one model, for metrics. Implementations must return quickly.
pub trait UpstreamObserver: Send + Sync {
    /// Reports the end of a request.
    fn on_request(&self, _replica: &str, _code: Code, _duration: Duration) {}
    /// Reports whether a replica is available.
    fn on_up(&self, _replica: &str, _is_up: bool) {}
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl UpstreamObserver for NoObserver {}

pub(crate) struct ReplicaPool {
    replicas: Vec<Replica>,
    state: Mutex<State>,
    observer: Arc<dyn UpstreamObserver>,
}

struct Replica {
    base: BaseUrl,
    name: String,
    /// `false` while the replica is unavailable.
    is_up: watch::Sender<bool>,
}

struct State {
    loads: Vec<Load>,
    /// The replica of a tree, and the trees in the order of their insertion.
    affinities: HashMap<u64, usize>,
    order: VecDeque<u64>,
}

#[derive(Default, Clone)]
struct Load {
    in_flight: usize,
    sent: u64,
    failed: Option<Instant>,
}

impl ReplicaPool {
    pub(crate) fn new(replicas: Vec<BaseUrl>, observer: Arc<dyn UpstreamObserver>) -> Self {
        let loads = vec![Load::default(); replicas.len()];
        let mut named = Vec::with_capacity(replicas.len());
        for base in replicas {
            let name = base.to_string();
            observer.on_up(&name, true);
            named.push(Replica { base, name, is_up: watch::Sender::new(true) });
        }
        let state = State { loads, affinities: HashMap::new(), order: VecDeque::new() };
        Self { replicas: named, state: Mutex::new(state), observer }
    }

    pub(crate) fn len(&self) -> usize {
        self.replicas.len()
    }

    pub(crate) fn base(&self, index: usize) -> &BaseUrl {
        &self.replicas[index].base
    }

    pub(crate) fn is_up(&self, index: usize) -> bool {
        *self.replicas[index].is_up.borrow()
    }

    pub(crate) fn any_is_up(&self) -> bool {
        (0..self.len()).any(|index| self.is_up(index))
    }

    /// Returns whether a replica other than this one is available.
    pub(crate) fn another_is_up(&self, index: usize) -> bool {
        (0..self.len()).any(|other| other != index && self.is_up(other))
    }

    /// Sets whether a replica is available. Returns whether that changed.
    pub(crate) fn set_up(&self, index: usize, is_up: bool, now: Instant) -> bool {
        self.state().loads[index].failed = (!is_up).then_some(now);
        let replica = &self.replicas[index];
        let changed = replica.is_up.send_replace(is_up) != is_up;
        if changed {
            self.observer.on_up(&replica.name, is_up);
        }
        changed
    }

    /// Returns when a replica becomes unavailable.
    pub(crate) async fn goes_down(&self, index: usize) {
        // `self` keeps the sender alive, so the wait cannot fail.
        let _ = self.replicas[index].is_up.subscribe().wait_for(|is_up| !is_up).await;
    }

    /// Returns the replica for a request of the tree `affinity` that already failed on the replicas `tried`,
    /// or `None` if it failed on all of them.
    pub(crate) fn lease(self: &Arc<Self>, affinity: Option<u64>, tried: &[usize]) -> Option<Lease> {
        let untried: Vec<usize> = (0..self.len()).filter(|index| !tried.contains(index)).collect();
        let available: Vec<usize> = untried.iter().copied().filter(|&index| self.is_up(index)).collect();
        let mut state = self.state();
        let known = affinity.and_then(|tree| state.affinities.get(&tree).copied());
        let loads = &state.loads;
        let index = if let Some(index) = known
            && available.contains(&index)
        {
            index
        } else if available.is_empty() {
            untried.into_iter().min_by_key(|&index| (loads[index].failed, loads[index].in_flight))?
        } else {
            available.into_iter().min_by_key(|&index| (loads[index].in_flight, loads[index].sent))?
        };
        if let Some(tree) = affinity {
            state.remember(tree, index);
        }
        state.loads[index].in_flight += 1;
        state.loads[index].sent += 1;
        Some(Lease { pool: Arc::clone(self), index, started: Instant::now() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The values stay valid even if a thread panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remember(&mut self, tree: u64, index: usize) {
        if self.affinities.insert(tree, index).is_none() {
            self.order.push_back(tree);
        }
        if self.order.len() > AFFINITIES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.affinities.remove(&oldest);
        }
    }
}

/// One request at a replica, in flight until this is dropped.
pub(crate) struct Lease {
    pool: Arc<ReplicaPool>,
    pub(crate) index: usize,
    started: Instant,
}

impl Lease {
    pub(crate) fn base(&self) -> &BaseUrl {
        self.pool.base(self.index)
    }

    /// Reports how the request ended.
    pub(crate) fn ended(&self, code: Code) {
        let replica = &self.pool.replicas[self.index];
        self.pool.observer.on_request(&replica.name, code, self.started.elapsed());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.state().loads[self.index].in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Arc<ReplicaPool> {
        let urls = ["http://a", "http://b", "http://c"].map(|url| url.parse().unwrap());
        Arc::new(ReplicaPool::new(urls.into(), Arc::new(NoObserver)))
    }

    fn next(pool: &Arc<ReplicaPool>, tree: u64) -> Lease {
        pool.lease(Some(tree), &[]).unwrap()
    }

    #[test]
    fn a_new_tree_goes_to_the_replica_with_the_fewest_requests_and_stays_there() {
        let pool = pool();
        let leases: Vec<_> = (0..3).map(|tree| next(&pool, tree)).collect();
        assert_eq!(leases.iter().map(|lease| lease.index).collect::<Vec<_>>(), [0, 1, 2]);
        let more: Vec<_> = (0..9).map(|_| next(&pool, 1)).collect();
        assert!(more.iter().all(|lease| lease.index == 1));
        drop(leases);
        drop(more);
        assert_eq!(next(&pool, 9).index, 0);
        assert_eq!(next(&pool, 1).index, 1);
    }

    #[test]
    fn a_tree_leaves_a_replica_that_fails_and_stays_at_the_next_one() {
        let pool = pool();
        let now = Instant::now();
        assert_eq!(next(&pool, 7).index, 0);
        assert!(pool.set_up(0, false, now));
        assert!(!pool.set_up(0, false, now));
        let other = next(&pool, 7).index;
        assert_ne!(other, 0);
        pool.set_up(0, true, now);
        assert_eq!(next(&pool, 7).index, other);
        assert_ne!(pool.lease(Some(7), &[other]).unwrap().index, other);
    }

    #[test]
    fn without_an_available_replica_the_one_that_failed_first_is_tried() {
        let pool = pool();
        let start = Instant::now();
        for (index, seconds) in [(0, 2), (1, 1), (2, 3)] {
            pool.set_up(index, false, start + Duration::from_secs(seconds));
        }
        assert!(!pool.any_is_up());
        let mut tried = Vec::new();
        while let Some(lease) = pool.lease(None, &tried) {
            tried.push(lease.index);
        }
        assert_eq!(tried, [1, 0, 2]);
    }

    #[test]
    fn only_the_last_trees_are_remembered() {
        let pool = pool();
        for tree in 0..2 * AFFINITIES_MAX as u64 {
            drop(next(&pool, tree));
        }
        let state = pool.state();
        assert_eq!((state.affinities.len(), state.order.len()), (AFFINITIES_MAX, AFFINITIES_MAX));
    }
}

//! A number of permits that clients share fairly: of threads, or of bytes.
//!
//! In: requests of a client for some permits. Out: [`Permits`], which return them when they are dropped.
//! Clients are served round-robin, and each client's requests in order of arrival. No client holds more than
//! its maximum, except with a single request, so that others find free permits. Every wait ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ntl_core::contract::EngineError;
use tokio::sync::oneshot;

use crate::error::AppError;

/// Maximum wait for permits that other requests hold.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct FairPermits {
    /// Maximum number of permits of one client.
    client_max: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Permits of each client that has any.
    held: HashMap<u64, usize>,
    /// Clients that wait, in the order in which they will be served.
    clients: VecDeque<WaitingClient>,
}

#[derive(Debug)]
struct WaitingClient {
    client: u64,
    requests: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    count: usize,
    granted: oneshot::Sender<Permits>,
}

/// Permits that a client holds. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct Permits {
    from: Arc<FairPermits>,
    client: u64,
    count: usize,
}

impl FairPermits {
    pub(crate) fn new(count: usize, client_max: usize) -> Arc<Self> {
        let state = State { free: count, held: HashMap::new(), clients: VecDeque::new() };
        Arc::new(Self { client_max, state: Mutex::new(state) })
    }

    /// Waits for `count` permits, which must not be more than there are. Dropping the future ends the wait.
    ///
    /// # Errors
    /// If they have not become free within [`WAIT_MAX`].
    pub(crate) async fn acquire(self: &Arc<Self>, client: u64, count: usize) -> Result<Permits, AppError> {
        let (granted, wait) = oneshot::channel();
        self.state().push(client, Waiting { count, granted });
        self.grant();
        let granted = tokio::time::timeout(WAIT_MAX, wait).await;
        let after_ms = u64::try_from(WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
        let granted = granted.map_err(|_| EngineError::QueueTimeout { after_ms })?;
        granted.map_err(|_| AppError::Internal)
    }

    /// Gives free permits to waiting requests.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = self.state().next(self.client_max);
            let Some((client, Waiting { count, granted })) = next else { return };
            // If the request is gone by now, this returns the permits.
            let _ = granted.send(Permits { from: Arc::clone(self), client, count });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, client: u64, request: Waiting) {
        match self.clients.iter_mut().find(|waiting| waiting.client == client) {
            Some(waiting) => waiting.requests.push_back(request),
            None => self.clients.push_back(WaitingClient { client, requests: [request].into() }),
        }
    }

    /// Takes the permits of the next request. After a request that does not fit, only clients without permits
    /// are served, so that small requests cannot starve a large one.
    fn next(&mut self, client_max: usize) -> Option<(u64, Waiting)> {
        for waiting in &mut self.clients {
            waiting.requests.retain(|request| !request.granted.is_closed());
        }
        self.clients.retain(|waiting| !waiting.requests.is_empty());
        let mut is_short = false;
        for index in 0..self.clients.len() {
            let WaitingClient { client, requests } = &mut self.clients[index];
            let client = *client;
            let Some(count) = requests.front().map(|request| request.count) else { continue };
            let held = self.held.get(&client).copied().unwrap_or_default();
            if held > 0 && held.saturating_add(count) > client_max {
                continue;
            }
            if count > self.free || is_short && held > 0 {
                is_short = true;
                continue;
            }
            let mut waiting = self.clients.remove(index)?;
            let request = waiting.requests.pop_front()?;
            // Its next request waits until each of the others had a turn.
            self.clients.push_back(waiting);
            self.free -= count;
            *self.held.entry(client).or_default() += count;
            return Some((client, request));
        }
        None
    }

    fn give_back(&mut self, client: u64, count: usize) {
        self.free += count;
        let held = self.held.entry(client).or_default();
        *held = held.saturating_sub(count);
        if *held == 0 {
            self.held.remove(&client);
        }
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        self.from.state().give_back(self.client, self.count);
        self.from.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;

    /// Returns the permits of a request, or the request if it has to wait.
    fn request(
        permits: &Arc<FairPermits>,
        client: u64,
        count: usize,
    ) -> Result<Permits, BoxFuture<'static, Permits>> {
        let permits = Arc::clone(permits);
        let mut waiting = async move { permits.acquire(client, count).await.unwrap() }.boxed();
        waiting.as_mut().now_or_never().ok_or(waiting)
    }

    #[tokio::test]
    async fn a_client_without_permits_need_not_wait_for_one_that_wants_all() {
        let permits = FairPermits::new(4, 3);
        let held: Vec<_> = (0..9).map(|_| request(&permits, 1, 1)).collect();
        assert_eq!(held.iter().filter(|request| request.is_ok()).count(), 3);
        let other = request(&permits, 2, 1).ok().unwrap();
        assert!(request(&permits, 2, 1).is_err(), "all are held");
        drop((held, other));
        assert_eq!(permits.state().free, 4);
        assert!(permits.state().held.is_empty());
    }

    #[tokio::test]
    async fn clients_are_served_in_turn_and_the_requests_of_each_in_order() {
        let permits = FairPermits::new(1, 1);
        let mut holder = request(&permits, 9, 1).ok().unwrap();
        let clients = [1, 1, 1, 2, 2, 3];
        let mut waiting: Vec<_> =
            clients.iter().map(|&client| Some(request(&permits, client, 1).unwrap_err())).collect();
        let mut served = Vec::new();
        while served.len() < clients.len() {
            drop(holder);
            let mut next = None;
            for (index, request) in waiting.iter_mut().enumerate() {
                if let Some(granted) = request.as_mut().and_then(|request| request.now_or_never()) {
                    assert!(next.is_none(), "one permit is free");
                    next = Some((index, granted));
                }
            }
            let (index, granted) = next.unwrap();
            waiting[index] = None;
            served.push(index);
            holder = granted;
        }
        assert_eq!(served, [0, 3, 5, 1, 4, 2]);
    }

    #[tokio::test]
    async fn a_request_that_is_gone_gets_no_permits() {
        let permits = FairPermits::new(1, 1);
        let holder = request(&permits, 1, 1).ok().unwrap();
        drop(request(&permits, 2, 1).unwrap_err());
        let third = request(&permits, 3, 1).unwrap_err();
        drop(holder);
        drop(third.now_or_never().unwrap());
        // Its permit was granted, and the request ends without having taken it.
        let holder = request(&permits, 1, 1).ok().unwrap();
        let granted = request(&permits, 2, 1).unwrap_err();
        drop(holder);
        drop(granted);
        assert!(request(&permits, 4, 1).is_ok());
        assert!(permits.state().clients.is_empty() && permits.state().held.is_empty());
    }

    #[tokio::test]
    async fn a_large_request_is_not_starved_by_small_ones_and_a_single_one_may_take_all() {
        let permits = FairPermits::new(8, 6);
        let first = request(&permits, 1, 4).ok().unwrap();
        let large = request(&permits, 2, 8).unwrap_err();
        assert!(request(&permits, 1, 1).is_err(), "the larger request came earlier");
        assert!(request(&permits, 3, 4).is_ok(), "its client has none");
        drop(first);
        assert_eq!(large.now_or_never().unwrap().count, 8);
    }
}

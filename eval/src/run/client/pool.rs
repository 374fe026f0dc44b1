//! The servers that requests go to, and which of them is next: of those that answer, the one with the fewest requests in flight.
//!
//! A server that fails is left out for a pause, which grows with each further failure, and then gets one request at a time until
//! it answers one. Where all of them are left out, the one whose pause ends first is asked all the same.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cli::base_url::BaseUrl;

#[derive(Debug)]
pub(super) struct EndpointPool {
    endpoints: Vec<BaseUrl>,
    /// One for each endpoint.
    states: Mutex<Vec<State>>,
}

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    sent: usize,
    failure: Option<Failure>,
}

/// The failures since the last answer.
#[derive(Debug)]
struct Failure {
    count: u32,
    resumes: Instant,
    reason: String,
}

impl State {
    fn is_available(&self, now: Instant) -> bool {
        self.failure.as_ref().is_none_or(|failure| failure.resumes <= now && self.in_flight == 0)
    }
}

impl EndpointPool {
    pub(super) fn new(endpoints: Vec<BaseUrl>) -> Self {
        let states = Mutex::new(endpoints.iter().map(|_| State::default()).collect());
        Self { endpoints, states }
    }

    pub(super) fn endpoints(&self) -> &[BaseUrl] {
        &self.endpoints
    }

    /// The next endpoint of a request that was sent to the endpoints `tried` before, in vain. None where it should pause.
    pub(super) fn lease(&self, tried: &[usize], now: Instant) -> Option<Lease<'_>> {
        let mut states = self.states();
        let untried = |(index, _): &(usize, &State)| !tried.contains(index);
        let available =
            states.iter().enumerate().filter(untried).filter(|(_, state)| state.is_available(now));
        let least = available.min_by_key(|(_, state)| (state.in_flight, state.sent));
        let resumes = |state: &State| state.failure.as_ref().map(|failure| failure.resumes);
        let first_back = || states.iter().enumerate().min_by_key(|(_, state)| resumes(state));
        let (index, _) = least.or_else(|| if tried.is_empty() { first_back() } else { None })?;
        states[index].in_flight += 1;
        states[index].sent += 1;
        Some(Lease { pool: self, index })
    }

    /// Why endpoints that gave no answer since then failed last.
    pub(super) fn failures(&self) -> Vec<String> {
        self.states().iter().filter_map(|state| Some(state.failure.as_ref()?.reason.clone())).collect()
    }

    /// Counters stay usable whatever a thread that held them did.
    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request at an endpoint, in flight until this is dropped.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    pool: &'a EndpointPool,
    pub(super) index: usize,
}

impl<'a> Lease<'a> {
    pub(super) fn endpoint(&self) -> &'a BaseUrl {
        &self.pool.endpoints[self.index]
    }

    /// The endpoint answered, with whatever status.
    pub(super) fn answered(self) {
        self.pool.states()[self.index].failure = None;
    }

    /// The endpoint failed; `pause_after` tells from the number of failures before how long it is left out.
    pub(super) fn failed(self, reason: String, now: Instant, pause_after: impl Fn(u32) -> Duration) {
        let mut states = self.pool.states();
        let before = states[self.index].failure.as_ref().map_or(0, |failure| failure.count);
        let resumes = now + pause_after(before);
        states[self.index].failure = Some(Failure { count: before + 1, resumes, reason });
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.pool.states()[self.index].in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    fn pool() -> EndpointPool {
        EndpointPool::new(["http://a", "http://b", "http://c"].map(|url| url.parse().unwrap()).into())
    }

    fn fail(lease: Lease<'_>, now: Instant) {
        lease.failed("gone".to_owned(), now, |before| PAUSE * (before + 1));
    }

    #[test]
    fn the_next_endpoint_has_the_fewest_requests_in_flight_then_the_fewest_at_all() {
        let (pool, now) = (pool(), Instant::now());
        let next = || pool.lease(&[], now).unwrap();
        let leases = [next(), next(), next(), next()];
        assert_eq!(leases.each_ref().map(|lease| lease.index), [0, 1, 2, 0]);
        let [first, second, ..] = leases;
        second.answered();
        assert_eq!(next().index, 1);
        first.answered();
        // Of two without a request in flight, the first was asked once more.
        assert_eq!(next().index, 1);
    }

    #[test]
    fn an_endpoint_that_fails_is_left_out_for_growing_pauses_and_asked_once_after_each() {
        let (pool, start) = (pool(), Instant::now());
        fail(pool.lease(&[], start).unwrap(), start);
        let at = |now| {
            let leases: Vec<_> = (0..6).map(|_| pool.lease(&[], now).unwrap()).collect();
            let count = leases.iter().filter(|lease| lease.index == 0).count();
            leases.into_iter().filter(|lease| lease.index == 0).for_each(|lease| fail(lease, now));
            count
        };
        let milliseconds = [0, 999, 1_000, 2_999, 3_000].map(|ms| at(start + Duration::from_millis(ms)));
        assert_eq!(milliseconds, [0, 0, 1, 0, 1]);
        assert_eq!(pool.failures(), ["gone"]);
        pool.lease(&[1, 2], start + PAUSE * 9).unwrap().answered();
        assert!(pool.failures().is_empty());
        let [first, second] = [(); 2].map(|()| pool.lease(&[1, 2], start).unwrap());
        assert_eq!((first.index, second.index), (0, 0));
    }

    #[test]
    fn a_request_meets_each_endpoint_once_and_one_even_where_all_fail() {
        let (pool, now) = (pool(), Instant::now());
        let mut tried = Vec::new();
        while let Some(lease) = pool.lease(&tried, now) {
            tried.push(lease.index);
            let pause = PAUSE * (4 - tried.len() as u32);
            lease.failed("gone".to_owned(), now, |_| pause);
        }
        assert_eq!(tried, [0, 1, 2]);
        assert_eq!(pool.lease(&[], now).unwrap().index, 2);
        assert!(EndpointPool::new(vec![]).lease(&[], now).is_none());
    }
}

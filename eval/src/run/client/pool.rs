//! Chooses the server for the next request: the available one with the fewest requests in flight.
//!
//! A server that fails gets no requests for a pause, which grows with each further failure. Then it gets one
//! request at a time until it answers one. If all servers pause, the next request goes to the one whose pause
//! ends first.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::settings::base_url::BaseUrl;

#[derive(Debug)]
pub(super) struct EndpointPool {
    endpoints: Vec<BaseUrl>,
    /// One state for each endpoint.
    states: Mutex<Vec<State>>,
    /// Time of the first request that failed on all endpoints since the last response.
    outage: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    sent: usize,
    failure: Option<Failure>,
}

/// The failures since the last response.
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
        Self { endpoints, states, outage: Mutex::default() }
    }

    pub(super) fn endpoints(&self) -> &[BaseUrl] {
        &self.endpoints
    }

    /// Returns the next endpoint for a request that already failed on the endpoints `tried`, or `None` if the
    /// request should pause.
    pub(super) fn lease(&self, tried: &[usize], now: Instant) -> Option<Lease<'_>> {
        let mut states = self.states();
        let mut available: Vec<usize> = (0..states.len()).collect();
        available.retain(|index| !tried.contains(index) && states[*index].is_available(now));
        let index =
            match available.into_iter().min_by_key(|index| (states[*index].in_flight, states[*index].sent)) {
                Some(least) => least,
                // All endpoints have failed: the first one that resumes.
                None if tried.is_empty() => (0..states.len())
                    .min_by_key(|index| states[*index].failure.as_ref().map(|failure| failure.resumes))?,
                None => return None,
            };
        states[index].in_flight += 1;
        states[index].sent += 1;
        Some(Lease { pool: self, index })
    }

    /// Returns the reason of the last failure for each endpoint that has not responded since.
    pub(super) fn failures(&self) -> Vec<String> {
        self.states().iter().filter_map(|state| Some(state.failure.as_ref()?.reason.clone())).collect()
    }

    /// Notes that a request failed at `now`, and returns the time of the first failure since the last
    /// response.
    pub(super) fn outage_since(&self, now: Instant) -> Instant {
        *lock(&self.outage).get_or_insert(now)
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        lock(&self.states)
    }
}

/// The values stay valid even if a thread panics while it holds the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Notes that the endpoint answered with a status that ends the request.
    pub(super) fn answered(self) {
        self.pool.states()[self.index].failure = None;
        *lock(&self.pool.outage) = None;
    }

    /// Notes that the endpoint failed. `pause_after` returns its pause for the number of earlier failures.
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
    fn the_next_endpoint_has_the_fewest_requests_in_flight_then_the_fewest_in_total() {
        let pool = pool();
        let now = Instant::now();
        let next = || pool.lease(&[], now).unwrap();
        let leases = [next(), next(), next(), next()];
        assert_eq!(leases.each_ref().map(|lease| lease.index), [0, 1, 2, 0]);
        let [first, second, ..] = leases;
        second.answered();
        assert_eq!(next().index, 1);
        first.answered();
        // Two endpoints have no request in flight, and the first has served one more.
        assert_eq!(next().index, 1);
    }

    #[test]
    fn a_failed_endpoint_is_skipped_for_growing_pauses_and_tried_once_after_each() {
        let pool = pool();
        let start = Instant::now();
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
    fn an_outage_lasts_from_the_first_failure_to_the_next_response() {
        let pool = pool();
        let start = Instant::now();
        assert_eq!(pool.outage_since(start), start);
        assert_eq!(pool.outage_since(start + PAUSE), start);
        pool.lease(&[], start).unwrap().answered();
        assert_eq!(pool.outage_since(start + PAUSE), start + PAUSE);
    }

    #[test]
    fn a_request_tries_each_endpoint_once_and_one_even_if_all_have_failed() {
        let pool = pool();
        let now = Instant::now();
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

//! One connection: whose turn it is, and since when.
//!
//! In: what the socket (`io`), the body reader (`extract`) and the accept loop see. Out: for how long the client has
//! kept the server waiting, and whether that is too long. Times are passed in, so that all of it can be tested
//! without a clock.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ConnectionSettings;

/// Reading this much starts a slow reader's time anew.
const PROGRESS_BYTES: usize = 64 << 10;

/// What is known of one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    state: Mutex<State>,
    go: watch::Sender<Option<&'static str>>,
}

#[derive(Debug)]
struct State {
    /// Requests being answered, in order of arrival.
    requests: BTreeMap<u64, Answering>,
    requests_seen: u64,
    /// Where no request is being answered: what is waited for.
    between: Between,
    /// Since when bytes wait for the client to read, and how many it has read since.
    unread: Option<(Instant, usize)>,
}

#[derive(Debug)]
struct Answering {
    began: Instant,
    /// Since when its body is waited for.
    body: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Between {
    /// The first byte of a request, since then.
    Idle(Instant),
    /// The rest of its header, since then.
    Header(Instant),
}

impl State {
    fn new(now: Instant) -> Self {
        let between = Between::Header(now);
        Self { requests: BTreeMap::new(), requests_seen: 0, between, unread: None }
    }

    fn received(&mut self, now: Instant) {
        if let Between::Idle(_) = self.between {
            self.between = Between::Header(now);
        }
    }

    fn begin(&mut self, now: Instant) -> u64 {
        self.requests_seen += 1;
        self.requests.insert(self.requests_seen, Answering { began: now, body: None });
        self.requests_seen
    }

    fn end(&mut self, request: u64, now: Instant) {
        self.requests.remove(&request);
        self.between = Between::Idle(now);
    }

    fn blocked(&mut self, now: Instant) {
        self.unread.get_or_insert((now, 0));
    }

    fn read_by_client(&mut self, bytes: usize, now: Instant) {
        if let Some((since, read)) = &mut self.unread {
            *read += bytes;
            if *read >= PROGRESS_BYTES {
                (*since, *read) = (now, 0);
            }
        }
    }

    /// Since when it has been the client's turn; `None` where the server is at work.
    fn waiting_since(&self) -> Option<Instant> {
        if let Some((since, _)) = self.unread {
            return Some(since);
        }
        if self.requests.is_empty() {
            let (Between::Idle(since) | Between::Header(since)) = self.between;
            return Some(since);
        }
        let bodies = self.requests.values().map(|request| request.body);
        bodies.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// What took too long, if anything did.
    fn overdue(&self, settings: &ConnectionSettings, now: Instant) -> Option<&'static str> {
        let is_over = |since: Instant, max| now.saturating_duration_since(since) > max;
        if self.unread.is_some_and(|(since, _)| is_over(since, settings.write_time_max)) {
            return Some("its answer was not read in time");
        }
        match (self.requests.values().next(), self.between) {
            (Some(oldest), _) if is_over(oldest.began, settings.answer_time_max) => {
                Some("its answer took too long")
            }
            (None, Between::Header(since)) if is_over(since, settings.header_time_max) => {
                Some("its header took too long")
            }
            (None, Between::Idle(since)) if is_over(since, settings.idle_time_max) => Some("it was idle"),
            _ => None,
        }
    }
}

impl Connection {
    /// A connection that was taken now.
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::new(Instant::now())), go: watch::Sender::new(None) }
    }

    /// Bytes came in.
    pub(super) fn received(&self) {
        self.state().received(Instant::now());
    }

    /// Bytes do not go out.
    pub(super) fn blocked(&self) {
        self.state().blocked(Instant::now());
    }

    /// Some bytes went out.
    pub(super) fn sent(&self, bytes: usize) {
        self.state().read_by_client(bytes, Instant::now());
    }

    /// All bytes are out.
    pub(super) fn flushed(&self) {
        self.state().unread = None;
    }

    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> RequestGuard {
        let request = self.state().begin(Instant::now());
        RequestGuard(Client { connection: Arc::clone(self), request })
    }

    /// Since when it has been the client's turn.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.state().waiting_since()
    }

    /// What took too long, if anything did.
    pub(super) fn overdue(&self, settings: &ConnectionSettings) -> Option<&'static str> {
        self.state().overdue(settings, Instant::now())
    }

    /// Tells it to go, and why.
    pub(super) fn go(&self, why: &'static str) {
        self.go.send_replace(Some(why));
    }

    /// Waits until it is told to go.
    pub(super) async fn told_to_go(&self) -> &'static str {
        let mut told = self.go.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let why = told.wait_for(Option::is_some).await.ok().and_then(|why| *why);
        why.unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who sends a request, as an extension of it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    connection: Arc<Connection>,
    request: u64,
}

impl Client {
    /// From now on the body is waited for, until the guard is dropped.
    pub(crate) fn reading(&self) -> BodyGuard {
        self.set_body(Some(Instant::now()));
        BodyGuard(self.clone())
    }

    fn set_body(&self, since: Option<Instant>) {
        if let Some(answering) = self.connection.state().requests.get_mut(&self.request) {
            answering.body = since;
        }
    }
}

/// A body that is waited for, until this is dropped.
pub(crate) struct BodyGuard(Client);

impl Drop for BodyGuard {
    fn drop(&mut self) {
        self.0.set_body(None);
    }
}

/// A request that is being answered, until this is dropped.
pub(super) struct RequestGuard(Client);

impl RequestGuard {
    /// Who sends it.
    pub(super) fn client(&self) -> Client {
        self.0.clone()
    }

    /// Keeps the request until its answer was taken.
    pub(super) fn until_read(self, body: Body) -> Body {
        Body::new(GuardedBody { body, _guard: self })
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.connection.state().end(self.0.request, Instant::now());
    }
}

struct GuardedBody {
    body: Body,
    _guard: RequestGuard,
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings() -> ConnectionSettings {
        let seconds = Duration::from_secs;
        ConnectionSettings {
            connections_max: 1,
            header_time_max: seconds(10),
            idle_time_max: seconds(75),
            write_time_max: seconds(30),
            answer_time_max: seconds(100),
        }
    }

    /// A connection's state at the beginning of its life, and its clock.
    fn fresh() -> (State, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        (State::new(start), move |seconds| start + Duration::from_secs(seconds))
    }

    #[test]
    fn a_header_must_come_in_time_however_its_bytes_drip() {
        let (mut state, at) = fresh();
        for second in 0..=10 {
            state.received(at(second));
            assert_eq!(state.overdue(&settings(), at(second)), None, "{second}");
        }
        assert_eq!(state.overdue(&settings(), at(11)), Some("its header took too long"));
        assert_eq!(state.waiting_since(), Some(at(0)));
    }

    #[test]
    fn between_requests_a_connection_may_idle_longer_than_a_header_may_take() {
        let (mut state, at) = fresh();
        let request = state.begin(at(1));
        assert_eq!(state.waiting_since(), None);
        state.end(request, at(5));
        assert_eq!(state.waiting_since(), Some(at(5)));
        assert_eq!(state.overdue(&settings(), at(80)), None);
        assert_eq!(state.overdue(&settings(), at(81)), Some("it was idle"));
        state.received(at(81));
        assert_eq!(state.overdue(&settings(), at(91)), None);
        assert_eq!(state.overdue(&settings(), at(92)), Some("its header took too long"));
    }

    #[test]
    fn only_a_client_that_reads_enough_gets_more_time() {
        let (mut state, at) = fresh();
        state.begin(at(0));
        state.blocked(at(1));
        state.read_by_client(100, at(20));
        state.blocked(at(20));
        assert_eq!(state.waiting_since(), Some(at(1)));
        assert_eq!(state.overdue(&settings(), at(32)), Some("its answer was not read in time"));
        state.read_by_client(PROGRESS_BYTES, at(30));
        assert_eq!(state.overdue(&settings(), at(60)), None);
    }

    #[test]
    fn a_connection_is_at_work_unless_all_its_requests_wait_for_their_bodies() {
        let (mut state, at) = fresh();
        let (first, second) = (state.begin(at(0)), state.begin(at(1)));
        state.requests.get_mut(&first).unwrap().body = Some(at(0));
        assert_eq!(state.waiting_since(), None);
        state.requests.get_mut(&second).unwrap().body = Some(at(2));
        assert_eq!(state.waiting_since(), Some(at(0)));
        assert_eq!(state.overdue(&settings(), at(100)), None);
        assert_eq!(state.overdue(&settings(), at(101)), Some("its answer took too long"));
    }
}

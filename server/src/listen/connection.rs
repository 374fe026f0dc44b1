//! The state of one connection: since when the server waits for the client, and which deadline has passed.
//!
//! In: what the socket (`io`), the body reader (`routes::body`) and the accept loop observe. The functions of [`State`]
//! take the time as an argument, so that tests need no clock.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ConnectionSettings;

/// Bytes after which the write deadline of a slow reader starts again.
const PROGRESS_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Connection {
    state: Mutex<State>,
    /// Why the connection is closed, once it is.
    closed: watch::Sender<Option<&'static str>>,
}

#[derive(Debug)]
pub(super) struct State {
    /// Requests being answered, in order of arrival.
    requests: BTreeMap<u64, Answering>,
    requests_seen: u64,
    /// What the server waits for while no request is in flight.
    between: Between,
    unread: Option<Unread>,
}

/// Bytes that wait for the client to read them.
#[derive(Debug, Clone, Copy)]
struct Unread {
    since: Instant,
    /// Bytes that the client has read since then.
    read: usize,
}

#[derive(Debug)]
struct Answering {
    began: Instant,
    /// Since when the server waits for the body.
    body: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Between {
    /// Waiting for the first byte of a request since then.
    Idle(Instant),
    /// Waiting for the rest of a header since then.
    Header(Instant),
}

impl State {
    fn new(now: Instant) -> Self {
        let between = Between::Header(now);
        Self { requests: BTreeMap::new(), requests_seen: 0, between, unread: None }
    }

    /// Bytes arrived.
    pub(super) fn received(&mut self, now: Instant) {
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

    /// The socket accepts no more bytes.
    pub(super) fn blocked(&mut self, now: Instant) {
        self.unread.get_or_insert(Unread { since: now, read: 0 });
    }

    /// The socket accepted some bytes.
    pub(super) fn sent(&mut self, bytes: usize, now: Instant) {
        if let Some(unread) = &mut self.unread {
            unread.read += bytes;
            if unread.read >= PROGRESS_BYTES {
                *unread = Unread { since: now, read: 0 };
            }
        }
    }

    /// The socket accepted all bytes.
    pub(super) fn flushed(&mut self) {
        self.unread = None;
    }

    /// Since when the server waits for the client; `None` while the server is at work.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        if let Some(Unread { since, .. }) = self.unread {
            return Some(since);
        }
        if self.requests.is_empty() {
            let (Between::Idle(since) | Between::Header(since)) = self.between;
            return Some(since);
        }
        let bodies = self.requests.values().map(|request| request.body);
        bodies.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// The deadline that has passed, if one has, as the reason to close the connection.
    pub(super) fn overdue(&self, settings: &ConnectionSettings, now: Instant) -> Option<&'static str> {
        let is_over = |since: Instant, max| now.saturating_duration_since(since) > max;
        if self.unread.is_some_and(|unread| is_over(unread.since, settings.write_time_max)) {
            return Some("the client did not read the answer in time");
        }
        match (self.requests.values().next(), self.between) {
            (Some(oldest), _) if is_over(oldest.began, settings.answer_time_max) => {
                Some("the answer took too long")
            }
            (None, Between::Header(since)) if is_over(since, settings.header_time_max) => {
                Some("the header took too long")
            }
            (None, Between::Idle(since)) if is_over(since, settings.idle_time_max) => {
                Some("the connection was idle")
            }
            _ => None,
        }
    }
}

impl Connection {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::new(Instant::now())), closed: watch::Sender::new(None) }
    }

    /// Records that the header of a request has arrived.
    pub(super) fn begin(self: &Arc<Self>) -> RequestGuard {
        let request = self.state().begin(Instant::now());
        RequestGuard(InFlightRequest { connection: Arc::clone(self), request })
    }

    pub(super) fn close(&self, reason: &'static str) {
        self.closed.send_replace(Some(reason));
    }

    /// Returns the reason once the connection is closed.
    #[expect(clippy::expect_used, reason = "`self` keeps the sender alive")]
    pub(super) async fn closed(&self) -> &'static str {
        let mut closed = self.closed.subscribe();
        let reason = *closed.wait_for(Option::is_some).await.expect("the sender is a field of `self`");
        reason.expect("`wait_for` returns when there is a reason")
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight, as an extension of the HTTP request.
#[derive(Debug, Clone)]
pub(crate) struct InFlightRequest {
    connection: Arc<Connection>,
    request: u64,
}

impl InFlightRequest {
    /// Records that the server waits for the body until the guard is dropped.
    pub(crate) fn wait_for_body(&self) -> BodyGuard {
        self.set_body(Some(Instant::now()));
        BodyGuard(self.clone())
    }

    fn set_body(&self, since: Option<Instant>) {
        if let Some(answering) = self.connection.state().requests.get_mut(&self.request) {
            answering.body = since;
        }
    }
}

pub(crate) struct BodyGuard(InFlightRequest);

impl Drop for BodyGuard {
    fn drop(&mut self) {
        self.0.set_body(None);
    }
}

/// Dropping it records that the request is answered.
pub(super) struct RequestGuard(InFlightRequest);

impl RequestGuard {
    pub(super) fn request(&self) -> InFlightRequest {
        self.0.clone()
    }

    /// Keeps the request in flight until the body of its answer is sent or dropped.
    pub(super) fn guard(self, body: Body) -> Body {
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
        assert_eq!(state.overdue(&settings(), at(11)), Some("the header took too long"));
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
        assert_eq!(state.overdue(&settings(), at(81)), Some("the connection was idle"));
        state.received(at(81));
        assert_eq!(state.overdue(&settings(), at(91)), None);
        assert_eq!(state.overdue(&settings(), at(92)), Some("the header took too long"));
    }

    #[test]
    fn only_a_client_that_reads_enough_gets_more_time() {
        let (mut state, at) = fresh();
        state.begin(at(0));
        state.blocked(at(1));
        state.sent(100, at(20));
        state.blocked(at(20));
        assert_eq!(state.waiting_since(), Some(at(1)));
        assert_eq!(state.overdue(&settings(), at(32)), Some("the client did not read the answer in time"));
        state.sent(PROGRESS_BYTES, at(30));
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
        assert_eq!(state.overdue(&settings(), at(101)), Some("the answer took too long"));
    }
}

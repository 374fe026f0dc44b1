//! The state of one connection: when the server began to wait for the client, and which deadline has passed.
//!
//! In: what the socket (`io`), the body reader (`routes::body`) and the accept loop observe. The functions of
//! [`State`] take the time as an argument, so that tests need no clock.

use std::collections::BTreeMap;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use futures::future::AbortHandle;
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ConnectionSettings;

/// Bytes after which the write deadline of a slow reader starts again.
const PROGRESS_BYTES: usize = 64 << 10;

/// Maximum size of a chunk that HTTP/2 buffers, in bytes. It buffers a whole chunk as soon as the client's
/// window has room for one byte, so that larger chunks would hide whether the client is reading.
const PIECE_BYTES_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Connection {
    state: Mutex<State>,
    /// How and why the connection is closed, once it is.
    closing: watch::Sender<Option<Closing>>,
}

/// How a connection is closed, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// Sends GOAWAY (HTTP/2), then finishes the requests that the client has already sent.
    Gracefully(&'static str),
    Now(&'static str),
}

#[derive(Debug)]
pub(super) struct State {
    /// Requests being answered, in order of arrival.
    requests: BTreeMap<u64, Answering>,
    requests_seen: u64,
    is_http2: bool,
    /// The event that the server waits for while no request is in flight.
    between: Between,
    /// Bytes in the socket's buffer.
    unread: Option<Unread>,
    /// When the server announced to the client that it closes the idle connection.
    going_away: Option<Instant>,
}

/// Bytes that wait for the client to read them.
#[derive(Debug, Clone, Copy)]
struct Unread {
    since: Instant,
    /// Bytes that the client has read since then.
    read: usize,
}

impl Unread {
    fn new(since: Instant) -> Self {
        Self { since, read: 0 }
    }

    /// The client has read some bytes, but not all of them.
    fn read(&mut self, bytes: usize, now: Instant) {
        self.read += bytes;
        if self.read >= PROGRESS_BYTES {
            *self = Self::new(now);
        }
    }
}

#[derive(Debug)]
struct Answering {
    began: Instant,
    waiting: Option<WaitCause>,
    /// Ends the HTTP/2 stream and leaves the others alone. `None` in HTTP/1.1: the server closes the
    /// connection instead.
    stream: Option<AbortHandle>,
}

/// The event that the server waits for while a request is in flight.
#[derive(Debug, Clone, Copy)]
enum WaitCause {
    /// The rest of the request's body, since then.
    ForBody(Instant),
    /// Room in the client's window for an answer that is ready (HTTP/2 only).
    ForReader(Unread),
}

impl Answering {
    fn waiting_since(&self) -> Option<Instant> {
        match self.waiting? {
            WaitCause::ForBody(since) | WaitCause::ForReader(Unread { since, .. }) => Some(since),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Between {
    /// Waiting for the first byte of a request since then. HTTP/2 also sends bytes that belong to no request,
    /// so its connections wait for whole headers.
    Idle(Instant),
    /// Waiting for the rest of a header since then.
    Header(Instant),
}

/// How the last call for a piece of an answer ended.
enum Pulled {
    /// There was a piece, which the client has yet to take.
    Piece,
    /// The client has taken all there is so far.
    Nothing,
}

impl State {
    fn new(now: Instant) -> Self {
        let between = Between::Header(now);
        let requests = BTreeMap::new();
        Self { requests, requests_seen: 0, is_http2: false, between, unread: None, going_away: None }
    }

    /// Bytes arrived.
    pub(super) fn received(&mut self, now: Instant) {
        if let (Between::Idle(_), false) = (self.between, self.is_http2) {
            self.between = Between::Header(now);
        }
    }

    /// A request's header arrived; over HTTP/2 with the handle of its stream.
    fn begin(&mut self, stream: Option<AbortHandle>, now: Instant) -> u64 {
        self.requests_seen += 1;
        self.is_http2 = stream.is_some();
        self.requests.insert(self.requests_seen, Answering { began: now, waiting: None, stream });
        self.requests_seen
    }

    fn end(&mut self, request: u64, now: Instant) {
        self.requests.remove(&request);
        self.between = Between::Idle(now);
    }

    /// Records that hyper polled the next chunk of a response, after `taken` bytes of the previous one. In
    /// HTTP/1.1 the socket shows whether the client reads.
    fn pulled(&mut self, request: u64, taken: usize, outcome: &Pulled, now: Instant) {
        let Some(request) = self.requests.get_mut(&request).filter(|request| request.stream.is_some()) else {
            return;
        };
        request.waiting = match (outcome, request.waiting) {
            (Pulled::Nothing, _) => None,
            (Pulled::Piece, Some(WaitCause::ForReader(mut unread))) => {
                unread.read(taken, now);
                Some(WaitCause::ForReader(unread))
            }
            (Pulled::Piece, _) => Some(WaitCause::ForReader(Unread::new(now))),
        };
    }

    /// The socket accepts no more bytes.
    pub(super) fn blocked(&mut self, now: Instant) {
        self.unread.get_or_insert(Unread::new(now));
    }

    /// The socket accepted some bytes.
    pub(super) fn sent(&mut self, bytes: usize, now: Instant) {
        if let Some(unread) = &mut self.unread {
            unread.read(bytes, now);
        }
    }

    /// The socket accepted all bytes.
    pub(super) fn flushed(&mut self) {
        self.unread = None;
    }

    /// Returns when the server began to wait for the client, or `None` while the server itself is working.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        if let Some(Unread { since, .. }) = self.unread {
            return Some(since);
        }
        if self.requests.is_empty() {
            let (Between::Idle(since) | Between::Header(since)) = self.between;
            return Some(since);
        }
        let waiting = self.requests.values().map(Answering::waiting_since);
        waiting.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Ends the HTTP/2 streams that have passed a deadline.
    pub(super) fn end_overdue_streams(&self, settings: &ConnectionSettings, now: Instant) {
        for request in self.requests.values() {
            let Some(stream) = &request.stream else { continue };
            let is_unread = matches!(request.waiting, Some(WaitCause::ForReader(unread))
                if is_over(unread.since, settings.write_time_max, now));
            if is_unread || is_over(request.began, settings.answer_time_max, now) {
                stream.abort();
            }
        }
    }

    /// How to close a connection that has passed a deadline.
    pub(super) fn overdue(&mut self, settings: &ConnectionSettings, now: Instant) -> Option<Closing> {
        if self.unread.is_some_and(|unread| is_over(unread.since, settings.write_time_max, now)) {
            return Some(Closing::Now("the client did not read the answer in time"));
        }
        if let Some(oldest) = self.requests.values().next() {
            let is_late = oldest.stream.is_none() && is_over(oldest.began, settings.answer_time_max, now);
            return is_late.then_some(Closing::Now("the answer took too long"));
        }
        match (self.between, self.going_away) {
            (Between::Header(since), _) if is_over(since, settings.header_time_max, now) => {
                Some(Closing::Now("the header took too long"))
            }
            (Between::Idle(since), None) if is_over(since, settings.idle_time_max, now) => {
                self.going_away = Some(now);
                Some(Closing::Gracefully("the connection was idle"))
            }
            // A header that was on its way has had its time.
            (Between::Idle(_), Some(told)) if is_over(told, settings.header_time_max, now) => {
                Some(Closing::Now("the client did not close its idle connection"))
            }
            _ => None,
        }
    }
}

fn is_over(since: Instant, max: std::time::Duration, now: Instant) -> bool {
    now.saturating_duration_since(since) > max
}

impl Connection {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::new(Instant::now())), closing: watch::Sender::new(None) }
    }

    /// Records that the header of a request has arrived; over HTTP/2 with the handle of its stream.
    pub(super) fn begin(self: &Arc<Self>, stream: Option<AbortHandle>) -> RequestGuard {
        let request = self.state().begin(stream, Instant::now());
        RequestGuard(InFlightRequest { connection: Arc::clone(self), request })
    }

    pub(super) fn close(&self, closing: Closing) {
        self.closing.send_replace(Some(closing));
    }

    /// Returns once the connection is to be closed; with `is_going_away` once it is to be closed now.
    #[expect(clippy::expect_used, reason = "`self` keeps the sender alive")]
    pub(super) async fn closed(&self, is_going_away: bool) -> Closing {
        let mut receiver = self.closing.subscribe();
        let closing = receiver.wait_for(|closing| match closing {
            Some(Closing::Now(_)) => true,
            Some(Closing::Gracefully(_)) => !is_going_away,
            None => false,
        });
        let closing = *closing.await.expect("the sender is a field of `self`");
        closing.expect("the wait does not end with `None`")
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
        self.set_waiting(Some(WaitCause::ForBody(Instant::now())));
        BodyGuard(self.clone())
    }

    fn set_waiting(&self, waiting: Option<WaitCause>) {
        if let Some(answering) = self.connection.state().requests.get_mut(&self.request) {
            answering.waiting = waiting;
        }
    }
}

pub(crate) struct BodyGuard(InFlightRequest);

impl Drop for BodyGuard {
    fn drop(&mut self) {
        self.0.set_waiting(None);
    }
}

/// Dropping it records that the request is answered.
pub(super) struct RequestGuard(InFlightRequest);

impl RequestGuard {
    pub(super) fn request(&self) -> InFlightRequest {
        self.0.clone()
    }

    /// Keeps the request in flight until the body of its answer is sent or dropped, and records whether the
    /// client reads.
    pub(super) fn guard(self, body: Body) -> Body {
        Body::new(GuardedBody { body, rest: Bytes::new(), taking: 0, guard: self })
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.connection.state().end(self.0.request, Instant::now());
    }
}

struct GuardedBody {
    body: Body,
    /// The rest of the last frame.
    rest: Bytes,
    /// Bytes of the last piece.
    taking: usize,
    guard: RequestGuard,
}

impl GuardedBody {
    /// The beginning of a frame; the rest of it comes next.
    fn piece(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_data() {
            Ok(mut data) => {
                self.rest = data.split_off(data.len().min(PIECE_BYTES_MAX));
                self.taking = data.len();
                Frame::data(data)
            }
            Err(trailers) => trailers,
        }
    }
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let taken = mem::take(&mut this.taking);
        let polled = if this.rest.is_empty() {
            Pin::new(&mut this.body).poll_frame(context)
        } else {
            Poll::Ready(Some(Ok(Frame::data(mem::take(&mut this.rest)))))
        };
        let polled = polled.map_ok(|frame| this.piece(frame));
        let outcome = if this.taking > 0 { Pulled::Piece } else { Pulled::Nothing };
        let InFlightRequest { connection, request } = &this.guard.0;
        connection.state().pulled(*request, taken, &outcome, Instant::now());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint() + SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::stream;
    use http_body_util::BodyExt;

    use super::*;

    fn settings() -> ConnectionSettings {
        let seconds = Duration::from_secs;
        ConnectionSettings {
            connections_max: 1,
            address_connections_max: 1,
            waiting_max: 0,
            evict_after: seconds(1),
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

    /// The handle of a stream.
    fn stream() -> AbortHandle {
        AbortHandle::new_pair().0
    }

    #[test]
    fn a_header_must_come_in_time_however_its_bytes_drip() {
        let (mut state, at) = fresh();
        for second in 0..=10 {
            state.received(at(second));
            assert_eq!(state.overdue(&settings(), at(second)), None, "{second}");
        }
        assert_eq!(state.overdue(&settings(), at(11)), Some(Closing::Now("the header took too long")));
        assert_eq!(state.waiting_since(), Some(at(0)));
    }

    #[test]
    fn between_requests_a_connection_may_idle_longer_than_a_header_may_take() {
        let (mut state, at) = fresh();
        let request = state.begin(None, at(1));
        assert_eq!(state.waiting_since(), None);
        state.end(request, at(5));
        assert_eq!(state.waiting_since(), Some(at(5)));
        assert_eq!(state.overdue(&settings(), at(80)), None);
        state.received(at(80));
        assert_eq!(state.overdue(&settings(), at(90)), None);
        assert_eq!(state.overdue(&settings(), at(91)), Some(Closing::Now("the header took too long")));
    }

    #[test]
    fn an_idle_client_is_told_before_its_connection_is_closed() {
        let (mut state, at) = fresh();
        let request = state.begin(None, at(1));
        state.end(request, at(5));
        assert_eq!(state.overdue(&settings(), at(80)), None);
        let told = Closing::Gracefully("the connection was idle");
        assert_eq!(state.overdue(&settings(), at(81)), Some(told));
        assert_eq!(state.overdue(&settings(), at(91)), None);
        // A request that the client sent before it knew is answered.
        let late = state.begin(None, at(91));
        assert_eq!(state.overdue(&settings(), at(180)), None);
        state.end(late, at(180));
        let closed = Closing::Now("the client did not close its idle connection");
        assert_eq!(state.overdue(&settings(), at(181)), Some(closed));
    }

    #[test]
    fn what_http_2_sends_between_requests_begins_no_header() {
        let (mut state, at) = fresh();
        state.received(at(0));
        let request = state.begin(Some(stream()), at(1));
        state.end(request, at(2));
        // An acknowledgement of settings, a ping.
        state.received(at(3));
        assert_eq!(state.overdue(&settings(), at(77)), None);
        assert!(matches!(state.overdue(&settings(), at(78)), Some(Closing::Gracefully(_))));
    }

    #[test]
    fn only_a_client_that_reads_enough_gets_more_time() {
        let (mut state, at) = fresh();
        state.begin(None, at(0));
        state.blocked(at(1));
        state.sent(100, at(20));
        state.blocked(at(20));
        assert_eq!(state.waiting_since(), Some(at(1)));
        let closed = Closing::Now("the client did not read the answer in time");
        assert_eq!(state.overdue(&settings(), at(32)), Some(closed));
        state.sent(PROGRESS_BYTES, at(30));
        assert_eq!(state.overdue(&settings(), at(60)), None);
    }

    #[test]
    fn a_stream_that_is_not_read_in_time_is_ended_and_leaves_the_others() {
        let (mut state, at) = fresh();
        let read = stream();
        let unread = stream();
        let (first, second) =
            (state.begin(Some(read.clone()), at(0)), state.begin(Some(unread.clone()), at(0)));
        state.pulled(second, 0, &Pulled::Piece, at(1));
        state.pulled(second, PROGRESS_BYTES / 2, &Pulled::Piece, at(20));
        assert_eq!(state.waiting_since(), None, "the server works on the first one");
        state.pulled(first, 0, &Pulled::Piece, at(2));
        assert_eq!(state.waiting_since(), Some(at(1)));
        state.pulled(first, PROGRESS_BYTES, &Pulled::Piece, at(30));
        state.end_overdue_streams(&settings(), at(31));
        assert!(!read.is_aborted() && !unread.is_aborted());
        state.end_overdue_streams(&settings(), at(32));
        assert!(!read.is_aborted() && unread.is_aborted());
        state.end(second, at(32));
        // The client has taken all there is: the server is at work again.
        state.pulled(first, PROGRESS_BYTES, &Pulled::Nothing, at(33));
        assert_eq!(state.waiting_since(), None);
        state.end_overdue_streams(&settings(), at(100));
        assert!(!read.is_aborted());
        state.end_overdue_streams(&settings(), at(101));
        assert!(read.is_aborted(), "the answer took too long");
        assert_eq!(state.overdue(&settings(), at(101)), None);
    }

    #[test]
    fn a_connection_is_at_work_unless_all_its_requests_wait_for_their_bodies() {
        let (mut state, at) = fresh();
        let first = state.begin(None, at(0));
        let second = state.begin(None, at(1));
        state.requests.get_mut(&first).unwrap().waiting = Some(WaitCause::ForBody(at(0)));
        assert_eq!(state.waiting_since(), None);
        state.requests.get_mut(&second).unwrap().waiting = Some(WaitCause::ForBody(at(2)));
        assert_eq!(state.waiting_since(), Some(at(0)));
        assert_eq!(state.overdue(&settings(), at(100)), None);
        assert_eq!(state.overdue(&settings(), at(101)), Some(Closing::Now("the answer took too long")));
    }

    #[tokio::test]
    async fn an_answer_is_handed_out_in_pieces_that_add_up() {
        let answer: Vec<u8> = (0..50_000).map(|byte| (byte % 251) as u8).collect();
        let guarded = |body| Arc::new(Connection::new()).begin(None).guard(body);
        let whole = guarded(Body::from(answer.clone()));
        assert_eq!(whole.size_hint().exact(), Some(50_000));
        assert_eq!(whole.collect().await.unwrap().to_bytes(), answer);
        let parts = ["", "one", "two"].map(Ok::<_, std::convert::Infallible>);
        let mut streamed = guarded(Body::from_stream(stream::iter(parts)));
        let mut sizes = Vec::new();
        while let Some(frame) = streamed.frame().await {
            sizes.push(frame.unwrap().into_data().unwrap().len());
        }
        assert_eq!(sizes, [0, 3, 3]);
        let mut large = guarded(Body::from(answer));
        let first = large.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), PIECE_BYTES_MAX);
        assert_eq!(large.size_hint().exact(), Some(50_000 - PIECE_BYTES_MAX as u64));
        assert!(!large.is_end_stream());
    }
}

//! A response as server-sent events: chunks as they are decoded, those that end it, and `[DONE]` if the API
//! has it.
//!
//! A failure is one event and ends the stream. A client that disconnects drops the
//! stream, which cancels its jobs.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::{Instant, Interval};

use super::pieces::Pieces;
use crate::answer::Piece;
use crate::apis::AnswerWriter;
use crate::error::AppError;
use crate::json_body;
use crate::response_budget::ReservedResponse;

/// Interval of keep-alive comments in a silent stream: below the usual timeouts of proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A comment, which clients ignore.
const COMMENT: &[u8] = b":\n\n";

/// The last event.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Makes nginx forward events immediately, without buffering.
pub(super) const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

struct Stream<A> {
    pieces: Pieces<A>,
    part: Part,
    include_usage: bool,
    keep_alive: Interval,
    /// The memory of the parts of prompts that are reported.
    reserved: ReservedResponse,
}

/// The next part of a stream.
enum Part {
    First,
    Choices,
    Last,
    Done,
    Nothing,
}

/// Streams a response. It begins with the first event, so that a request that fails earlier gets the status
/// of its error.
pub(super) async fn respond(
    mut pieces: Pieces<impl AnswerWriter>,
    include_usage: bool,
    reserved: ReservedResponse,
) -> Result<Response, AppError> {
    pieces.events.begin().await?;
    let keep_alive = tokio::time::interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    let stream = Stream { pieces, part: Part::First, include_usage, keep_alive, reserved };
    let events = futures::stream::unfold(stream, |mut stream| async move {
        stream.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), stream))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        (NO_BUFFERING, "no"),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

impl<A: AnswerWriter> Stream<A> {
    /// Returns the events with a piece.
    async fn events(&mut self, piece: Piece) -> Bytes {
        let writer = Arc::clone(&self.pieces.writer);
        let bytes = piece.bytes();
        let client = self.reserved.client();
        match json_body::build(client, bytes, move || Ok(events_of::<A>(&writer.chunks(piece)))).await {
            Ok(events) => events,
            Err(error) => self.failure(&error),
        }
    }

    /// Returns the last event of a stream that fails.
    fn failure(&mut self, error: &AppError) -> Bytes {
        self.part = Part::Done;
        match self.pieces.writer.failure_chunk(error) {
            Some(chunk) => events_of::<A>(&[chunk]),
            None => event_of(None, &error.body()),
        }
    }

    /// Returns the next events, or a comment if there is none for a while.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.part {
                Part::First => {
                    self.part = Part::Choices;
                    let events = events_of::<A>(&self.pieces.writer.first_chunks());
                    if !events.is_empty() {
                        return Some(events);
                    }
                }
                Part::Choices => {
                    self.keep_alive.reset();
                    let next = tokio::select! {
                        biased;
                        next = self.pieces.next() => next,
                        _ = self.keep_alive.tick() => return Some(Bytes::from_static(COMMENT)),
                    };
                    match next {
                        Ok(Some(piece)) => {
                            let events = self.events(piece).await;
                            if !events.is_empty() {
                                return Some(events);
                            }
                        }
                        Ok(None) => self.part = Part::Last,
                        Err(error) => return Some(self.failure(&error)),
                    }
                }
                Part::Last => {
                    self.part = Part::Done;
                    let Pieces { writer, assembler, .. } = &self.pieces;
                    let chunks = writer.last_chunks(assembler.token_counts(), self.include_usage);
                    if !chunks.is_empty() {
                        return Some(events_of::<A>(&chunks));
                    }
                }
                Part::Done => {
                    self.part = Part::Nothing;
                    return A::ENDS_WITH_DONE.then(|| Bytes::from_static(DONE));
                }
                Part::Nothing => return None,
            }
        }
    }
}

fn events_of<A: AnswerWriter>(chunks: &[A::Chunk]) -> Bytes {
    chunks.iter().flat_map(|chunk| event_of(A::event_name(chunk), chunk)).collect()
}

/// Returns an event. Compact JSON has no line breaks, which would begin another field.
#[expect(clippy::expect_used, reason = "wire types always serialise")]
fn event_of(name: Option<&str>, body: &impl Serialize) -> Bytes {
    let mut event = name.map_or_else(Vec::new, |name| format!("event: {name}\n").into_bytes());
    event.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut event, body).expect("wire types have string keys and finite numbers");
    event.extend_from_slice(b"\n\n");
    event.into()
}

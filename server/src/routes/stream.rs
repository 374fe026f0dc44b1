//! A response as server-sent events: chunks as they are decoded, the token counts if requested, and always
//! `[DONE]` at the end.
//!
//! A failure is one event with the error body and ends the stream. A client that disconnects drops the
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
use crate::adapters::AnswerAdapter;
use crate::answer::Piece;
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
    _reserved: ReservedResponse,
}

/// The next part of a stream.
enum Part {
    Choices,
    Usage,
    Done,
    Nothing,
}

/// Streams a response. It begins with the first event, so that a request that fails earlier gets the status
/// of its error.
pub(super) async fn respond(
    mut pieces: Pieces<impl AnswerAdapter>,
    include_usage: bool,
    reserved: ReservedResponse,
) -> Result<Response, AppError> {
    pieces.events.begin().await?;
    let keep_alive = tokio::time::interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    let stream = Stream { pieces, part: Part::Choices, include_usage, keep_alive, _reserved: reserved };
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

impl<A: AnswerAdapter> Stream<A> {
    /// Returns the event with a piece.
    async fn chunk(&mut self, piece: Piece) -> Bytes {
        let adapter = Arc::clone(&self.pieces.adapter);
        let event = json_body::build(piece.bytes(), move || Ok(event_of(&adapter.chunk(piece))));
        event.await.unwrap_or_else(|error| {
            self.part = Part::Done;
            event_of(&error.body())
        })
    }

    /// Returns the next event, or a comment if there is none for a while.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.part {
                Part::Choices => {
                    self.keep_alive.reset();
                    let next = tokio::select! {
                        biased;
                        next = self.pieces.next() => next,
                        _ = self.keep_alive.tick() => return Some(Bytes::from_static(COMMENT)),
                    };
                    match next {
                        Ok(Some(piece)) => return Some(self.chunk(piece).await),
                        Ok(None) => self.part = if self.include_usage { Part::Usage } else { Part::Done },
                        Err(error) => {
                            self.part = Part::Done;
                            return Some(event_of(&error.body()));
                        }
                    }
                }
                Part::Usage => {
                    self.part = Part::Done;
                    let Pieces { adapter, assembler, .. } = &self.pieces;
                    return Some(event_of(&adapter.usage_chunk(assembler.token_counts())));
                }
                Part::Done => {
                    self.part = Part::Nothing;
                    return Some(Bytes::from_static(DONE));
                }
                Part::Nothing => return None,
            }
        }
    }
}

/// Returns an event. Compact JSON has no line breaks, which would begin another field.
#[expect(clippy::expect_used, reason = "wire types always serialise")]
fn event_of(body: &impl Serialize) -> Bytes {
    let mut event = b"data: ".to_vec();
    serde_json::to_writer(&mut event, body).expect("wire types have string keys and finite numbers");
    event.extend_from_slice(b"\n\n");
    event.into()
}

//! An answer as server-sent events: chunks as they are decoded, the token counts if asked for, `[DONE]` last in any case.
//!
//! A failure is one event with the error body and ends the stream. A client that disconnects drops the stream, which
//! cancels its jobs.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::{Instant, Interval};

use super::piece::piece;
use crate::adapters::AnswerAdapter;
use crate::answer::Assembler;
use crate::engine::RequestEvents;
use crate::error::AppError;
use crate::request::StreamOptions;

/// Interval of keep-alive comments in a silent stream: below the usual timeouts of proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A comment, which clients ignore.
const COMMENT: &[u8] = b":\n\n";

/// The last event.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Tells nginx to pass events on as they come.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

struct Stream<A> {
    adapter: A,
    events: RequestEvents,
    assembler: Assembler,
    part: Part,
    options: StreamOptions,
    keep_alive: Interval,
}

/// What comes next in a stream.
enum Part {
    Choices,
    Usage,
    Done,
    Nothing,
}

/// Streams an answer. The response begins with the first event, so that a request that fails before has the status of
/// its error.
pub(super) async fn respond(
    adapter: impl AnswerAdapter,
    mut events: RequestEvents,
    assembler: Assembler,
    options: StreamOptions,
) -> Result<Response, AppError> {
    events.begin().await?;
    let keep_alive = tokio::time::interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    let stream = Stream { adapter, events, assembler, part: Part::Choices, options, keep_alive };
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
    /// The next event, or a comment where there is none for a while.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.part {
                Part::Choices => {
                    self.keep_alive.reset();
                    let next = tokio::select! {
                        biased;
                        next = self.events.next() => next,
                        _ = self.keep_alive.tick() => return Some(Bytes::from_static(COMMENT)),
                    };
                    match next {
                        Ok(Some((prompt, event))) => {
                            let (assembler, events) = (&mut self.assembler, &self.events);
                            if let Some(piece) = piece(&self.adapter, assembler, events, prompt, event) {
                                return Some(event_of(&self.adapter.chunk(piece)));
                            }
                        }
                        Ok(None) => {
                            self.part = if self.options.include_usage { Part::Usage } else { Part::Done };
                        }
                        Err(error) => {
                            self.part = Part::Done;
                            return Some(event_of(&error.body()));
                        }
                    }
                }
                Part::Usage => {
                    self.part = Part::Done;
                    return Some(event_of(&self.adapter.usage_chunk(self.assembler.token_counts())));
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

/// An event. JSON has no line breaks, which would begin another field.
#[expect(clippy::expect_used, reason = "wire types always become JSON")]
fn event_of(body: &impl Serialize) -> Bytes {
    let mut event = b"data: ".to_vec();
    serde_json::to_writer(&mut event, body).expect("wire types have string keys and finite numbers");
    event.extend_from_slice(b"\n\n");
    event.into()
}

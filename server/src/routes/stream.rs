//! An answer as server-sent events: chunks as they are decoded, the token counts if asked for, `[DONE]` last in any case.
//!
//! A failure is one event with the error body and ends the stream. A client that disconnects drops the stream, which
//! cancels its jobs.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderName;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::piece::piece;
use crate::adapters::AnswerAdapter;
use crate::answer::Assembler;
use crate::engine::RequestEvents;
use crate::error::AppError;
use crate::request::StreamOptions;

/// Interval of keep-alive comments in a silent stream: below the usual timeouts of proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Tells nginx to pass events on as they come.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

struct Stream<A> {
    adapter: A,
    events: RequestEvents,
    assembler: Assembler,
    next: Part,
    options: StreamOptions,
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
    let stream = Stream { adapter, events, assembler, next: Part::Choices, options };
    let events = futures::stream::unfold(stream, |mut stream| async move {
        stream.event().await.map(|event| (Ok::<_, Infallible>(event), stream))
    });
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok(([(NO_BUFFERING, "no")], sse).into_response())
}

impl<A: AnswerAdapter> Stream<A> {
    async fn event(&mut self) -> Option<Event> {
        loop {
            match self.next {
                Part::Choices => match self.events.next().await {
                    Ok(Some((prompt, event))) => {
                        let (assembler, events) = (&mut self.assembler, &self.events);
                        if let Some(piece) = piece(&self.adapter, assembler, events, prompt, event) {
                            return Some(data(&self.adapter.chunk(piece)));
                        }
                    }
                    Ok(None) => self.next = if self.options.include_usage { Part::Usage } else { Part::Done },
                    Err(error) => {
                        self.next = Part::Done;
                        return Some(data(&error.body()));
                    }
                },
                Part::Usage => {
                    self.next = Part::Done;
                    return Some(data(&self.adapter.usage_chunk(self.assembler.token_counts())));
                }
                Part::Done => {
                    self.next = Part::Nothing;
                    return Some(Event::default().data("[DONE]"));
                }
                Part::Nothing => return None,
            }
        }
    }
}

#[expect(clippy::expect_used, reason = "wire types always become JSON")]
fn data(body: &impl Serialize) -> Event {
    Event::default().json_data(body).expect("wire types have string keys and finite numbers")
}

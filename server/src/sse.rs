//! An answer as server-sent events: chunks while it is made, the usage if asked for, `[DONE]` last in any case.
//!
//! An error on the way is one event with the error body, and ends the stream. A client that leaves drops the stream,
//! which cancels its jobs.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::answers::Answers;
use crate::convert::ChoiceWriter;
use crate::error::AppError;
use crate::reply::Head;

/// How often a silent stream says that it is alive: below the usual limits of proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Tells nginx to pass events on as they come.
const NO_BUFFERING: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// A stream on its way.
struct Feed {
    head: Head,
    answers: Answers,
    writer: ChoiceWriter,
    next: Part,
    include_usage: bool,
}

/// What comes next in a stream.
enum Part {
    Choices,
    Usage,
    Done,
    Nothing,
}

/// The response that streams an answer. It begins with the first event, so that a request that is refused until then
/// has the status of its error.
///
/// # Errors
/// When the engine fails before anything is said.
pub(crate) async fn respond(
    head: Head,
    mut answers: Answers,
    writer: ChoiceWriter,
    include_usage: bool,
) -> Result<Response, AppError> {
    answers.begin().await?;
    let feed = Feed { head, answers, writer, next: Part::Choices, include_usage };
    let events = futures::stream::unfold(feed, |mut feed| async move {
        feed.event().await.map(|event| (Ok::<_, Infallible>(event), feed))
    });
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    let mut response = sse.into_response();
    response.headers_mut().insert(NO_BUFFERING.0, NO_BUFFERING.1);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

impl Feed {
    async fn event(&mut self) -> Option<Event> {
        loop {
            match self.next {
                Part::Choices => match self.answers.next().await {
                    Ok(Some((prompt, event))) => {
                        if let Some(piece) = self.writer.write(prompt, event) {
                            return Some(data(&self.head.piece(piece)));
                        }
                    }
                    Ok(None) => self.next = if self.include_usage { Part::Usage } else { Part::Done },
                    Err(error) => {
                        self.next = Part::Done;
                        return Some(data(&error.body()));
                    }
                },
                Part::Usage => {
                    self.next = Part::Done;
                    return Some(data(&self.head.usage(self.writer.usage())));
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

fn data(body: &impl Serialize) -> Event {
    // Wire types have string keys and finite numbers only, so that they always become JSON.
    Event::default().json_data(body).unwrap_or_else(|_| Event::default().data("{}"))
}

//! Response bodies of JSON, in chunks that are freed as they are written.
//!
//! In: wire types, one list item at a time, so that only one item exists in two forms. Out: the same bytes as
//! of the whole wire type. A body holds its part of the budget of responses until its last chunk is taken.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use serde::Serialize;

use crate::blocking::{check_wanted, run_blocking};
use crate::error::AppError;
use crate::response_budget::ReservedResponse;

/// Maximum size of a chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// A response of at most this many bytes is written inline, in well under a millisecond.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// Runs `work`, which writes a client's response of about `bytes` bytes: inline if they are few, otherwise on
/// the blocking thread pool.
pub(crate) async fn build<T: Send + 'static>(
    client: u64,
    bytes: usize,
    work: impl FnOnce() -> Result<T, AppError> + Send + 'static,
) -> Result<T, AppError> {
    run_blocking(client, if bytes > INLINE_BYTES_MAX { bytes } else { 0 }, work).await
}

/// Returns the response that `write` writes, and that has about the size that is reserved for it.
pub(crate) async fn respond(
    reserved: ReservedResponse,
    write: impl FnOnce() -> Result<JsonBody, AppError> + Send + 'static,
) -> Result<Response, AppError> {
    build(reserved.client(), reserved.estimate(), move || Ok(write()?.into_response(reserved))).await
}

/// JSON that is being written.
#[derive(Debug, Default)]
pub(crate) struct JsonBody {
    full: VecDeque<Bytes>,
    last: Vec<u8>,
}

impl JsonBody {
    /// Writes a value.
    pub(crate) fn of(value: &impl Serialize) -> Result<Self, AppError> {
        let mut body = Self::default();
        body.write_json(value)?;
        Ok(body)
    }

    /// Writes `envelope` with these items in its list `name`, which is empty.
    pub(crate) fn with_items<T: Serialize>(
        envelope: &impl Serialize,
        name: &str,
        items: impl Iterator<Item = T>,
    ) -> Result<Self, AppError> {
        let envelope = serde_json::to_string(envelope).map_err(|_| AppError::Internal)?;
        // Quotation marks inside of strings are escaped, so that no string contains this text.
        let empty = format!("\"{name}\":[]");
        let at = envelope.find(&empty).ok_or(AppError::Internal)? + empty.len() - 1;
        let (before, after) = envelope.split_at(at);
        let mut body = Self::default();
        body.push(before.as_bytes());
        for (index, item) in items.enumerate() {
            check_wanted()?;
            if index > 0 {
                body.push(b",");
            }
            body.write_json(&item)?;
        }
        body.push(after.as_bytes());
        Ok(body)
    }

    fn write_json(&mut self, value: &impl Serialize) -> Result<(), AppError> {
        serde_json::to_writer(self, value).map_err(|_| AppError::Internal)
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.last.len()));
            self.last.extend_from_slice(now);
            if self.last.len() == CHUNK_BYTES {
                let full = std::mem::replace(&mut self.last, Vec::with_capacity(CHUNK_BYTES));
                self.full.push_back(full.into());
            }
            bytes = later;
        }
    }

    /// Returns the response, which holds `reserved` until the client has taken its chunks.
    pub(crate) fn into_response(self, mut reserved: ReservedResponse) -> Response {
        let Self { full: mut chunks, last } = self;
        let body = if chunks.is_empty() {
            Body::from(last)
        } else {
            if !last.is_empty() {
                chunks.push_back(last.into());
            }
            let left = chunks.iter().map(Bytes::len).sum();
            reserved.set(left);
            Body::new(Chunks { chunks, left, reserved })
        };
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

impl io::Write for JsonBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The chunks that are not written yet.
struct Chunks {
    chunks: VecDeque<Bytes>,
    /// Their number of bytes.
    left: usize,
    reserved: ReservedResponse,
}

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let chunk = this.chunks.pop_front();
        this.left -= chunk.as_ref().map_or(0, Bytes::len);
        this.reserved.set(this.left);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use ntl_api::{Choice, CompletionResponse};
    use prometheus::IntGauge;

    use super::*;
    use crate::response_budget::{ResponseBudget, ResponseSize};

    fn reserved(gauge: &IntGauge) -> ReservedResponse {
        let budget = ResponseBudget::new(1 << 20, 1 << 20, gauge.clone());
        budget.reserve(1, ResponseSize { bytes: 1 << 20, fields: Vec::new() }).unwrap()
    }

    fn response(texts: &[String]) -> CompletionResponse {
        let choice =
            |(index, text): (u64, &String)| Choice { index, text: text.clone(), ..Choice::default() };
        CompletionResponse {
            id: r#"","choices":[],"x":""#.to_owned(),
            object: "text_completion".to_owned(),
            created: 1,
            model: "m".to_owned(),
            system_fingerprint: None,
            choices: (0..).zip(texts).map(choice).collect(),
            usage: None,
        }
    }

    #[tokio::test]
    async fn items_are_written_as_the_whole_is_and_release_their_memory_chunk_by_chunk() {
        let gauge = IntGauge::new("bytes", "bytes").unwrap();
        for texts in [
            vec![],
            vec!["\"quoted\"".to_owned()],
            vec!["x".repeat(CHUNK_BYTES)],
            vec!["\u{e9}\n".repeat(50_000), String::new(), "y".repeat(CHUNK_BYTES - 1)],
        ] {
            let whole = response(&texts);
            let want = serde_json::to_string(&whole).unwrap();
            let envelope = response(&[]);
            let body = JsonBody::with_items(&envelope, "choices", whole.choices.iter()).unwrap();
            let mut body = body.into_response(reserved(&gauge)).into_body();
            assert_eq!(HttpBody::size_hint(&body).exact(), Some(want.len() as u64));
            let mut got = Vec::new();
            while let Some(frame) = body.frame().await {
                let chunk = frame.unwrap().into_data().unwrap();
                assert!(chunk.len() <= CHUNK_BYTES);
                got.extend_from_slice(&chunk);
                let left = want.len() - got.len();
                let held = if left > CHUNK_BYTES { left } else { 0 };
                assert_eq!(gauge.get(), held as i64);
            }
            assert_eq!(String::from_utf8(got).unwrap(), want);
        }
    }

    #[test]
    fn a_body_that_is_dropped_releases_its_memory() {
        let gauge = IntGauge::new("bytes", "bytes").unwrap();
        let body = JsonBody::of(&"x".repeat(200_000)).unwrap().into_response(reserved(&gauge));
        assert_eq!(gauge.get(), 200_002);
        drop(body);
        assert_eq!(gauge.get(), 0);
    }
}

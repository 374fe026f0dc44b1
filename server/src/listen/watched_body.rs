//! The body of a request, which records whether it is read to its end.
//!
//! HTTP/1.1 cannot answer the next request of a connection before the body of the last one is read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

pub(super) struct WatchedBody<B = Incoming> {
    body: B,
    usage: BodyUse,
}

/// Whether a body is read to its end. Clones are about the same body.
#[derive(Clone)]
pub(super) struct BodyUse(Arc<AtomicBool>);

impl BodyUse {
    pub(super) fn is_unread(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

impl<B: HttpBody<Data = Bytes> + Send + Unpin + 'static> WatchedBody<B>
where
    B::Error: Into<axum::BoxError>,
{
    pub(super) fn watch(request: hyper::Request<B>) -> (Request, BodyUse) {
        let usage = BodyUse(Arc::new(AtomicBool::new(request.body().is_end_stream())));
        let request = request.map(|body| Body::new(Self { body, usage: usage.clone() }));
        (request, usage)
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if frame.is_none() || this.body.is_end_stream() {
            this.usage.0.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
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
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test]
    async fn a_body_is_unread_until_its_last_byte_is_taken() {
        let watch = |text: &'static str| WatchedBody::watch(hyper::Request::new(Full::<Bytes>::from(text)));
        let (request, usage) = watch("some text");
        assert!(usage.is_unread());
        request.into_body().collect().await.unwrap();
        assert!(!usage.is_unread());
        let (_, usage) = watch("");
        assert!(!usage.is_unread(), "there is nothing to read");
    }
}

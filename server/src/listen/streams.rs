//! The tasks of HTTP/2 streams, each with a handle that ends it alone: the server then resets the stream, and
//! its request is dropped with all its jobs.

use std::future::Future;

use futures::future::{AbortHandle, abortable};
use hyper::rt::Executor;

tokio::task_local! {
    static STREAM: AbortHandle;
}

/// The stream that the present task answers; `None` in the task of an HTTP/1.1 connection.
pub(super) fn current() -> Option<AbortHandle> {
    STREAM.try_with(AbortHandle::clone).ok()
}

/// Spawns a task for each stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamExecutor;

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let (stream, handle) = abortable(stream);
        tokio::spawn(STREAM.scope(handle, stream));
    }
}

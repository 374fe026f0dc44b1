//! Requests that the engine answers by itself: their bodies go there, and its responses come back, unread.

use super::Upstream;
use crate::client::{BaseUrl, OpenResponse, UpstreamError};

/// A response of the engine that has begun.
pub struct Forwarded {
    response: OpenResponse,
}

impl Forwarded {
    pub fn content_type(&self) -> Option<&[u8]> {
        self.response.content_type()
    }

    /// Waits for the next part of the body. Returns `None` after the last one. The engine waits while nothing is
    /// read.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>, UpstreamError> {
        self.response.chunk().await
    }
}

impl Upstream {
    /// Sends a body to a route, and returns the response once it has begun successfully. Another replica is tried
    /// if none has begun.
    ///
    /// # Errors
    /// [`UpstreamError::Rejected`] with the engine's message if the request is wrong.
    pub async fn forward(&self, route: &'static str, body: &[u8]) -> Result<Forwarded, UpstreamError> {
        let exchange = |base: BaseUrl| async move {
            let response = self.client().open(&base, route, body.to_vec()).await?;
            if (200..300).contains(&response.status()) {
                return Ok(Forwarded { response });
            }
            Err(response.into_error().await)
        };
        self.replicas.request(None, exchange).await
    }
}

//! Requests that the engine answers by itself: their bodies go there, and its responses come back, unread
//! except that the API key is removed.

use super::{EngineKind, Upstream};
use crate::client::{BaseUrl, OpenResponse, UpstreamError};
use crate::replicas::Lease;

/// A response of the engine that has begun.
pub struct Forwarded {
    response: OpenResponse,
    /// The replica has this request in flight until the response ends.
    _lease: Lease,
}

impl Forwarded {
    pub fn content_type(&self) -> Option<String> {
        self.response.content_type()
    }

    /// Waits for the next part of the body. Returns `None` after the last one. The engine waits while nothing
    /// is read.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>, UpstreamError> {
        self.response.chunk().await
    }
}

impl Upstream {
    /// Returns whether prompts use each other's cached prefixes only if their salts are equal.
    pub fn separates_salts(&self) -> bool {
        matches!(self.facts.kind, EngineKind::Vllm | EngineKind::Ntl | EngineKind::Sglang)
    }

    /// Sends a body to a route, and returns the response once it has begun successfully. Another replica is
    /// tried if none has begun.
    ///
    /// # Errors
    /// [`UpstreamError::Rejected`] with the engine's message if the request is wrong.
    pub async fn forward(&self, route: &'static str, body: &[u8]) -> Result<Forwarded, UpstreamError> {
        let answered = self.replicas.request_and_hold(None, |base: BaseUrl| async move {
            let response = self.client().open(&base, route, body.to_vec()).await?;
            if (200..300).contains(&response.status()) {
                return Ok(response);
            }
            Err(response.into_error().await)
        });
        let (response, lease) = answered.await?;
        Ok(Forwarded { response, _lease: lease })
    }
}

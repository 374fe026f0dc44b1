//! Requests that the engine answers by itself: their bodies go there, and its responses come back, unread
//! except that the API key is removed.

use super::{EngineKind, Upstream};
use crate::client::{BaseUrl, OpenResponse, UpstreamError};
use crate::replicas::{Lease, Purpose};

/// Maximum number of bytes of a response that is read as a whole.
const WHOLE_BYTES_MAX: usize = 64 << 20;

/// A response of the engine that has begun, or that has arrived as a whole.
pub struct Forwarded {
    content: Content,
    /// The replica has this request in flight until the response ends.
    _lease: Lease,
}

enum Content {
    Arriving(Box<OpenResponse>),
    /// JSON; `None` once it has been read.
    Whole(Option<Vec<u8>>),
}

impl Forwarded {
    pub fn content_type(&self) -> Option<String> {
        match &self.content {
            Content::Arriving(response) => response.content_type(),
            Content::Whole(_) => Some("application/json".to_owned()),
        }
    }

    /// The size of a response that has arrived as a whole, in bytes.
    pub fn held_bytes(&self) -> Option<usize> {
        match &self.content {
            Content::Arriving(_) => None,
            Content::Whole(body) => Some(body.as_ref().map_or(0, Vec::len)),
        }
    }

    /// Waits for the next part of the body. Returns `None` after the last one. The engine waits while nothing
    /// is read.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>, UpstreamError> {
        match &mut self.content {
            Content::Arriving(response) => response.chunk().await,
            Content::Whole(body) => Ok(body.take()),
        }
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
        let answered = self.replicas.request_and_hold(Purpose::Client, |base: BaseUrl| async move {
            let response = self.client().open(&base, route, body.to_vec()).await?;
            if (200..300).contains(&response.status()) {
                return Ok(response);
            }
            Err(response.into_error().await)
        });
        let (response, lease) = answered.await?;
        Ok(Forwarded { content: Content::Arriving(Box::new(response)), _lease: lease })
    }

    /// Like [`forward`](Self::forward), but returns the response only when all of it has arrived. Another
    /// replica is also tried if the response breaks off, or if `is_complete` is false for its JSON.
    ///
    /// # Errors
    /// [`UpstreamError::NotUnderstood`] if no replica sends a complete response, [`UpstreamError::TooLarge`]
    /// if it exceeds 64 MiB.
    pub async fn forward_whole(
        &self,
        route: &'static str,
        body: &[u8],
        is_complete: fn(&str) -> bool,
    ) -> Result<Forwarded, UpstreamError> {
        let client = self.client();
        let answered = self.replicas.request_and_hold(Purpose::Client, |base: BaseUrl| async move {
            let bytes = client.post_bytes(&base, route, body.to_vec(), WHOLE_BYTES_MAX).await?;
            match String::from_utf8(bytes) {
                Ok(json) if is_complete(&json) => Ok(client.without_key(&json).into_bytes()),
                _ => Err(client.not_understood(&base, &"it lacks a complete answer")),
            }
        });
        let (content, lease) = answered.await?;
        Ok(Forwarded { content: Content::Whole(Some(content)), _lease: lease })
    }
}

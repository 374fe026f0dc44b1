//! Requests that the engine answers by itself: their bodies go there, and its responses come back, unread
//! except that the API key is removed.

use super::{EngineKind, Upstream};
use crate::client::{BaseUrl, OpenResponse, UpstreamError};
use crate::replicas::Lease;

/// Maximum number of bytes of a response that is read as a whole.
const WHOLE_BYTES_MAX: usize = 64 << 20;

/// A response of the engine that has begun.
pub struct Forwarded {
    content_type: Option<String>,
    content: Content,
    /// The replica has this request in flight until the response ends.
    _lease: Lease,
}

enum Content {
    Arriving(Box<OpenResponse>),
    /// `None` once it has been read.
    Whole(Option<Vec<u8>>),
}

impl Forwarded {
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
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
        let answered = self.replicas.request_and_hold(None, |base: BaseUrl| async move {
            self.client().open(&base, route, body.to_vec()).await?.successful().await
        });
        let (response, lease) = answered.await?;
        let content_type = response.content_type();
        Ok(Forwarded { content_type, content: Content::Arriving(Box::new(response)), _lease: lease })
    }

    /// Like [`forward`](Self::forward), but returns the response only when all of it has arrived. Another
    /// replica is also tried if the response breaks off, or if `is_complete` is false for its body.
    ///
    /// # Errors
    /// [`UpstreamError::NotUnderstood`] if no replica sends a complete response, [`UpstreamError::TooLarge`]
    /// if it exceeds 64 MiB.
    pub async fn forward_whole(
        &self,
        route: &'static str,
        body: &[u8],
        is_complete: fn(&[u8]) -> bool,
    ) -> Result<Forwarded, UpstreamError> {
        let answered = self.replicas.request_and_hold(None, |base: BaseUrl| async move {
            let opened = self.client().open(&base, route, body.to_vec()).await?;
            let response = opened.successful().await?;
            let content_type = response.content_type();
            let content = response.whole(WHOLE_BYTES_MAX).await?;
            if !is_complete(&content) {
                let reason = "it lacks a complete answer";
                return Err(self.client().not_understood(&base, &reason));
            }
            Ok((content_type, content))
        });
        let ((content_type, content), lease) = answered.await?;
        Ok(Forwarded { content_type, content: Content::Whole(Some(content)), _lease: lease })
    }
}

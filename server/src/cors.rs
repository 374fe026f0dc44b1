//! Which web pages may call the API from a browser (`--cors-origin`). None, unless said.

use std::time::Duration;

use axum::http::{HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::request_id;

/// How long a browser may remember what is allowed.
const MEMORY: Duration = Duration::from_secs(3600);

/// Origins that are allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origins {
    /// None: no header is sent.
    #[default]
    None,
    /// All of them.
    Any,
    /// These, such as `https://example.com`.
    These(Vec<HeaderValue>),
}

/// The layer that answers preflights and marks responses, where any origin is allowed.
pub(crate) fn layer(origins: &Origins) -> CorsLayer {
    let allowed = match origins {
        Origins::None => return CorsLayer::new(),
        Origins::Any => AllowOrigin::any(),
        Origins::These(origins) => AllowOrigin::list(origins.iter().cloned()),
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE, request_id::NAME])
        .expose_headers([header::RETRY_AFTER, request_id::NAME])
        .max_age(MEMORY)
}

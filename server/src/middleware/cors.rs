//! Which web pages may call the API from a browser (`--cors-origin`); none by default.

use std::time::Duration;

use axum::http::{Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::{quota, request_id, track};
use crate::settings::Origins;

/// How long a browser may cache the answer to a preflight.
const PREFLIGHT_AGE_MAX: Duration = Duration::from_secs(3600);

/// Returns the layer, or `None` if no web page may call the API.
pub(crate) fn layer(origins: &Origins) -> Option<CorsLayer> {
    let allowed = match origins {
        Origins::None => return None,
        Origins::Any => AllowOrigin::any(),
        Origins::These(origins) => AllowOrigin::list(origins.iter().cloned()),
    };
    let mut exposed = vec![header::RETRY_AFTER, request_id::HEADER, track::FINGERPRINT];
    exposed.extend(quota::REQUESTS.into_iter().chain(quota::TOKENS));
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE, request_id::HEADER])
        .expose_headers(exposed)
        .max_age(PREFLIGHT_AGE_MAX);
    Some(layer)
}

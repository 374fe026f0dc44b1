//! The OpenAPI description, and a page that shows it. The page loads nothing from other servers.

use axum::Extension;
use axum::http::header;
use axum::response::{Html, IntoResponse};

use crate::paths::{DOCS, OPENAPI};

/// The function that makes the description. Every request has it as an extension.
#[derive(Clone, Copy)]
pub(crate) struct Description(pub(crate) fn() -> &'static str);

/// The page contains its script and its style.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// This description.
///
/// An OpenAPI 3.1 document that describes exactly the routes of this server.
#[utoipa::path(get, path = OPENAPI, tag = "operations", responses(
    (status = 200, description = "The description", body = serde_json::Value),
))]
pub(crate) async fn description(Extension(Description(json)): Extension<Description>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], json())
}

/// A page that shows this description.
#[utoipa::path(get, path = DOCS, tag = "operations", responses(
    (status = 200, description = "The page", body = String, content_type = "text/html"),
))]
pub(crate) async fn page() -> impl IntoResponse {
    let headers = [(header::CONTENT_SECURITY_POLICY, POLICY), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, Html(include_str!("docs.html")))
}

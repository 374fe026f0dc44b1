//! The description of the API for programs, and a page of it for people. The page loads nothing from elsewhere.

use std::sync::OnceLock;

use axum::http::header;
use axum::response::{Html, IntoResponse};

use crate::openapi;
use crate::routes::{DOCS, OPENAPI};

/// Script and style are in the page itself.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// This description.
///
/// OpenAPI 3.1, of exactly the routes of this server.
#[utoipa::path(get, path = OPENAPI, tag = "operations", responses(
    (status = 200, description = "The description", body = serde_json::Value),
))]
pub(crate) async fn description() -> impl IntoResponse {
    static JSON: OnceLock<String> = OnceLock::new();
    ([(header::CONTENT_TYPE, "application/json")], JSON.get_or_init(openapi::json).as_str())
}

/// A page to read this description.
#[utoipa::path(get, path = DOCS, tag = "operations", responses(
    (status = 200, description = "The page", body = String, content_type = "text/html"),
))]
pub(crate) async fn page() -> impl IntoResponse {
    let headers = [(header::CONTENT_SECURITY_POLICY, POLICY), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, Html(include_str!("docs.html")))
}

//! A build without traces. `config` refuses an endpoint before this is called.

use axum::http::HeaderMap;
use tracing::Span;

use super::{BoxedLayer, TelemetryError};

pub(super) enum Traces {}

impl Traces {
    pub(super) fn finish(self) {
        match self {}
    }
}

pub(super) fn start(_endpoint: Option<&str>) -> Result<Option<(Traces, BoxedLayer)>, TelemetryError> {
    Ok(None)
}

pub(crate) fn set_parent(_span: &Span, _headers: &HeaderMap) {}

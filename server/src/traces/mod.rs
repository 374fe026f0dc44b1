//! Traces of requests for an OpenTelemetry collector, in builds with the feature `otel`; nothing in others.

#[cfg(not(feature = "otel"))]
mod none;
#[cfg(feature = "otel")]
mod otlp;

#[cfg(not(feature = "otel"))]
pub(crate) use none::{Traces, follow, start};
#[cfg(feature = "otel")]
pub(crate) use otlp::{Traces, follow, start};

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
#[error("cannot send traces to `{endpoint}`: {reason}")]
pub struct TracesError {
    endpoint: String,
    reason: String,
}

//! Spans in OTLP over HTTP, sent in batches from a separate thread.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use opentelemetry::KeyValue;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Span, field};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;

use super::{BoxedLayer, TRACE, TelemetryError};

const SERVICE: &str = env!("CARGO_PKG_NAME");

/// Path of an endpoint that has none.
const PATH: &str = "/v1/traces";

pub(super) struct Traces(SdkTracerProvider);

impl Traces {
    pub(super) fn finish(self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

pub(super) fn start(endpoint: Option<&str>) -> Result<Option<(Traces, BoxedLayer)>, TelemetryError> {
    let Some(endpoint) = endpoint else { return Ok(None) };
    let exporter =
        SpanExporter::builder().with_http().with_endpoint(address(endpoint)).build().map_err(|error| {
            TelemetryError::Traces { endpoint: endpoint.to_owned(), reason: error.to_string() }
        })?;
    let version = KeyValue::new("service.version", crate::VERSION);
    let resource = Resource::builder().with_service_name(SERVICE).with_attribute(version).build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(SERVICE));
    let layer = layer.with_filter(filter_fn(|metadata| metadata.target() == TRACE));
    Ok(Some((Traces(provider), layer.boxed())))
}

fn address(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    if base.splitn(4, '/').nth(3).is_some() { base.to_owned() } else { format!("{base}{PATH}") }
}

/// Starts the span of a request, with the attribute names of OpenTelemetry, in the trace that its headers
/// name (`traceparent`).
pub(crate) fn request_span(route: &str, id: Option<&str>, request: &Request) -> Span {
    let method = super::method_name(request.method());
    let span = tracing::info_span!(
        target: TRACE,
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        request.id = id,
        http.request.method = method,
        http.route = route,
        http.response.status_code = field::Empty,
        gen_ai.request.model = field::Empty,
    );
    let context = TraceContextPropagator::new().extract(&Headers(request.headers()));
    // Fails only for a span that the filter drops.
    let _ = span.set_parent(context);
    span
}

/// Adds the attributes that are known when the response ends.
pub(crate) fn record_end(span: &Span, model: &str, code: u16) {
    span.record("gen_ai.request.model", model).record("http.response.status_code", code);
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_gets_the_usual_one() {
        for (endpoint, want) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/otlp/v1/traces", "http://localhost:4318/otlp/v1/traces"),
        ] {
            assert_eq!(address(endpoint), want);
        }
    }
}

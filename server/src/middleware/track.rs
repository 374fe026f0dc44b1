//! Counts every request from its header to the end of its response, streams included.
//!
//! In: requests and responses as they pass. Out: metrics, a span, and the number of requests in flight that a drain
//! waits for. A request whose client disconnects early is counted with code 499.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use tower_http::request_id::RequestId;
use tracing::{Instrument, Span, field};

use crate::error::{RefusalReason, Rejection};
use crate::paths;
use crate::state::AppState;
use crate::telemetry;

/// Code of a request whose client disconnected before the response was complete, as in nginx.
const CLIENT_DISCONNECTED: u16 = 499;

/// The value of the label `model`: a request extension that the handler sets once it knows the model.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelLabel(Arc<OnceLock<Arc<str>>>);

impl ModelLabel {
    pub(crate) fn known(&self, name: &Arc<str>) {
        // The first value counts.
        let _ = self.0.set(Arc::clone(name));
    }

    /// The request names a model that is not served.
    pub(crate) fn unknown(&self) {
        let _ = self.0.set(Arc::from("unknown"));
    }

    fn as_str(&self) -> &str {
        self.0.get().map_or("none", |name| name)
    }
}

/// One request in flight. Dropping it counts its end.
struct InFlight {
    app: AppState,
    route: String,
    model: ModelLabel,
    started: Instant,
    /// Public paths are no work: a drain does not wait for them.
    is_work: bool,
    code: u16,
    /// Why the request was refused with 400.
    reason: Option<String>,
    span: Span,
}

impl InFlight {
    fn start(app: AppState, request: &Request) -> Self {
        let matched = request.extensions().get::<MatchedPath>();
        let route = matched.map_or("unmatched", MatchedPath::as_str).to_owned();
        let is_work = !paths::is_public(&route);
        if is_work {
            app.lifecycle.enter();
            app.metrics.in_flight.inc();
        }
        let span = if is_work { span(&route, request) } else { Span::none() };
        let (model, started) = (ModelLabel::default(), Instant::now());
        Self { app, route, model, started, is_work, code: CLIENT_DISCONNECTED, reason: None, span }
    }

    /// The response is complete.
    fn end(mut self, code: u16) {
        self.code = code;
        drop(self);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let (metrics, elapsed) = (&self.app.metrics, self.started.elapsed());
        let (model, code) = (self.model.as_str(), self.code.to_string());
        metrics.requests.with_label_values(&[self.route.as_str(), model, &code]).inc();
        if paths::runs_a_model(&self.route) {
            metrics.request_seconds.with_label_values(&[model]).observe(elapsed.as_secs_f64());
        }
        if self.is_work {
            metrics.in_flight.dec();
            self.app.lifecycle.leave();
        }
        let elapsed_ms = elapsed.as_secs_f64() * 1e3;
        self.span.record("gen_ai.request.model", model).record("http.response.status_code", self.code);
        let _inside = self.span.enter();
        if self.is_work {
            tracing::info!(model, code, elapsed_ms, reason = self.reason, "request ended");
        } else {
            tracing::debug!(route = self.route, code, elapsed_ms, "request ended");
        }
    }
}

/// The span of a request, with the attribute names of OpenTelemetry.
fn span(route: &str, request: &Request) -> Span {
    let id = request.extensions().get().and_then(|id: &RequestId| id.header_value().to_str().ok());
    let method = request.method().as_str();
    let span = tracing::info_span!(
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        request.id = id,
        http.request.method = method,
        http.route = route,
        http.response.status_code = field::Empty,
        gen_ai.request.model = field::Empty,
    );
    telemetry::set_parent(&span, request.headers());
    span
}

/// The layer; it runs inside the one that sets request ids.
pub(crate) async fn track(State(app): State<AppState>, mut request: Request, next: Next) -> Response {
    let mut in_flight = InFlight::start(app, &request);
    request.extensions_mut().insert(in_flight.model.clone());
    let response = next.run(request).instrument(in_flight.span.clone()).await;
    let code = response.status().as_u16();
    in_flight.reason = response.extensions().get().map(|RefusalReason(reason)| reason.clone());
    if let (Some(Rejection(reason)), true) = (response.extensions().get(), in_flight.is_work) {
        in_flight.app.metrics.rejected.with_label_values(&[*reason]).inc();
    }
    if response.body().size_hint().exact().is_some() {
        in_flight.end(code);
        return response;
    }
    response.map(|body| until_end(body, in_flight, code))
}

/// Passes a stream on. Its end is counted when it comes, or when the client stops reading.
fn until_end(body: Body, in_flight: InFlight, code: u16) -> Body {
    let data = body.into_data_stream();
    Body::from_stream(futures::stream::unfold((data, in_flight), move |(mut data, in_flight)| async move {
        match data.next().await {
            Some(bytes) => Some((bytes, (data, in_flight))),
            None => {
                in_flight.end(code);
                None
            }
        }
    }))
}

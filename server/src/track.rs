//! Counts every request from its header to the end of its answer, streamed answers included.
//!
//! In: requests and responses as they pass. Out: metrics, a span, and the number of requests in flight that a drain
//! waits for. A client that leaves early is counted with code 499.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use tracing::{Instrument, Span, field};

use crate::error::Rejection;
use crate::request_id::RequestId;
use crate::routes::{self, CHAT, COMPLETIONS, SCORE};
use crate::state::AppState;
use crate::traces;

/// Code of requests whose client left before the answer was complete, after nginx.
const CLIENT_LEFT: u16 = 499;

/// The model that a request turned out to be for; a handler says so once it knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelLabel(Arc<OnceLock<Arc<str>>>);

impl ModelLabel {
    /// The request is for this model, which is served.
    pub(crate) fn known(&self, name: &Arc<str>) {
        // Said once; a second time changes nothing.
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

/// One request; its end is counted when this is dropped.
struct Passage {
    app: AppState,
    route: String,
    model: ModelLabel,
    started: Instant,
    /// Whether it is work, which a drain waits for, or somebody looking at the server.
    is_work: bool,
    code: u16,
    span: Span,
}

impl Passage {
    fn start(app: AppState, request: &Request) -> Self {
        let matched = request.extensions().get::<MatchedPath>();
        let route = matched.map_or("unmatched", MatchedPath::as_str).to_owned();
        let is_work = !routes::is_public(&route);
        if is_work {
            app.lifecycle.enter();
            app.metrics.http.in_flight.inc();
        }
        let span = if is_work { span(&route, request) } else { Span::none() };
        let (model, started) = (ModelLabel::default(), Instant::now());
        Self { app, route, model, started, is_work, code: CLIENT_LEFT, span }
    }

    /// The answer is complete.
    fn end(mut self, code: u16) {
        self.code = code;
        drop(self);
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let (metrics, elapsed) = (&self.app.metrics, self.started.elapsed());
        let (model, code) = (self.model.as_str(), self.code.to_string());
        metrics.http.requests.with_label_values(&[self.route.as_str(), model, &code]).inc();
        if [CHAT, COMPLETIONS, SCORE].contains(&self.route.as_str()) {
            metrics.http.request_seconds.observe(elapsed.as_secs_f64());
        }
        if self.is_work {
            metrics.http.in_flight.dec();
            self.app.lifecycle.leave();
        }
        let elapsed_ms = elapsed.as_secs_f64() * 1e3;
        self.span.record("gen_ai.request.model", model).record("http.response.status_code", self.code);
        let _inside = self.span.enter();
        if self.is_work {
            tracing::info!(model, code, elapsed_ms, "request ended");
        } else {
            tracing::debug!(route = self.route, code, elapsed_ms, "request ended");
        }
    }
}

/// What logs and traces know of a request, by the names of OpenTelemetry.
fn span(route: &str, request: &Request) -> Span {
    let id = request.extensions().get().map(RequestId::as_str);
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
    traces::follow(&span, request.headers());
    span
}

/// The layer behind the one that names requests.
pub(crate) async fn track(State(app): State<AppState>, mut request: Request, next: Next) -> Response {
    let passage = Passage::start(app, &request);
    request.extensions_mut().insert(passage.model.clone());
    let response = next.run(request).instrument(passage.span.clone()).await;
    let code = response.status().as_u16();
    if let (Some(Rejection(reason)), true) = (response.extensions().get(), passage.is_work) {
        passage.app.metrics.http.rejected.with_label_values(&[*reason]).inc();
    }
    if response.body().size_hint().exact().is_some() {
        passage.end(code);
        return response;
    }
    response.map(|body| follow(body, passage, code))
}

/// Passes a stream on and counts its end when it comes, or when nobody reads on.
fn follow(body: Body, passage: Passage, code: u16) -> Body {
    let data = body.into_data_stream();
    Body::from_stream(futures::stream::unfold((data, passage), move |(mut data, passage)| async move {
        match data.next().await {
            Some(bytes) => Some((bytes, (data, passage))),
            None => {
                passage.end(code);
                None
            }
        }
    }))
}

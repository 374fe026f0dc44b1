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
use tracing::Instrument;

use crate::error::Rejection;
use crate::routes::{self, CHAT, COMPLETIONS};
use crate::state::AppState;

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
        let (model, started) = (ModelLabel::default(), Instant::now());
        Self { app, route, model, started, is_work, code: CLIENT_LEFT }
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
        if [CHAT, COMPLETIONS].contains(&self.route.as_str()) {
            metrics.http.request_seconds.observe(elapsed.as_secs_f64());
        }
        if self.is_work {
            metrics.http.in_flight.dec();
            self.app.lifecycle.leave();
        }
        let elapsed_ms = elapsed.as_secs_f64() * 1e3;
        tracing::debug!(route = self.route, model, code, elapsed_ms, "request ended");
    }
}

/// The outermost layer.
pub(crate) async fn track(State(app): State<AppState>, mut request: Request, next: Next) -> Response {
    let passage = Passage::start(app, &request);
    request.extensions_mut().insert(passage.model.clone());
    let span =
        tracing::debug_span!("request", request.id = %uuid::Uuid::new_v4().simple(), route = passage.route);
    let response = next.run(request).instrument(span).await;
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

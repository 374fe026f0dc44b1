//! Counts every request from its header to the end of its response, streams included.
//!
//! In: requests and responses as they pass. Out: metrics, spans, a log line, the header with the model's
//! fingerprint, and the number of requests in flight that a drain waits for. An incomplete response has code
//! 499 if the client disconnected, and 503 if the drain cut it off.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use ntl_api::FINGERPRINT_HEADER;
use tower_http::request_id::RequestId;
use tracing::{Instrument, Level, Span, field};

use crate::error::{RefusalReason, Rejection};
use crate::paths;
use crate::request::RequestRecord;
use crate::state::AppState;
use crate::telemetry;

/// Names the checkpoint that computed a response, so that clients notice if the weights change under the same
/// name.
pub(crate) const FINGERPRINT: HeaderName = HeaderName::from_static(FINGERPRINT_HEADER);

/// Code of a request whose client disconnected before the response was complete, as in nginx.
const CLIENT_DISCONNECTED: u16 = 499;

/// Code of a request that the drain cut off.
const CUT_OFF: u16 = 503;

/// One request in flight. Dropping it counts its end.
struct InFlight {
    app: AppState,
    method: &'static str,
    route: String,
    /// The part of the log line that the handler fills in.
    record: Arc<RequestRecord>,
    caller: Caller,
    /// The `x-request-id`.
    id: Option<String>,
    started: Instant,
    /// Public paths are not work: a drain does not wait for them.
    is_work: bool,
    /// The status of the response, once it is sent to its end.
    code: Option<u16>,
    /// Why the server rejected the request with 400.
    reason: Option<String>,
    /// The span of the request's other log lines.
    log: Span,
    trace: Span,
}

/// Who sent a request.
struct Caller {
    address: Option<IpAddr>,
    /// The name of the API key.
    key: Option<String>,
}

impl Caller {
    fn of(app: &AppState, request: &Request) -> Self {
        let from = request.extensions().get::<ConnectInfo<SocketAddr>>();
        Self {
            address: from.map(|ConnectInfo(from)| from.ip().to_canonical()),
            key: app.settings.api_keys.matched(request.headers()).map(|key| key.name),
        }
    }
}

impl InFlight {
    fn start(app: AppState, request: &Request) -> Self {
        let matched = request.extensions().get::<MatchedPath>();
        let route = matched.map_or("unmatched", MatchedPath::as_str).to_owned();
        let is_work = !paths::is_public(&route);
        if is_work {
            app.lifecycle.enter();
            app.metrics.ntl_requests_in_flight.inc();
        }
        let id = request.extensions().get().and_then(|id: &RequestId| id.header_value().to_str().ok());
        let (log, trace) = if is_work {
            (
                tracing::info_span!("request", id = id.map(field::display)),
                telemetry::request_span(&route, id, request),
            )
        } else {
            (Span::none(), Span::none())
        };
        let id = id.map(str::to_owned);
        let method = telemetry::method_name(request.method());
        let caller = Caller::of(&app, request);
        let record = Arc::default();
        let started = Instant::now();
        Self {
            app,
            method,
            route,
            record,
            caller,
            id,
            started,
            is_work,
            code: None,
            reason: None,
            log,
            trace,
        }
    }

    /// Counts a response that was sent to its end.
    fn end(mut self, code: u16) {
        self.code = Some(code);
        drop(self);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let metrics = &self.app.metrics;
        let elapsed = self.started.elapsed();
        let is_cut_off = self.code.is_none() && self.app.lifecycle.is_cut_off();
        let code = self.code.unwrap_or(if is_cut_off { CUT_OFF } else { CLIENT_DISCONNECTED });
        let model = self.record.model();
        metrics.ntl_requests_total.with_label_values(&[self.route.as_str(), model, &code.to_string()]).inc();
        if paths::runs_a_model(&self.route) {
            metrics.ntl_request_duration_seconds.with_label_values(&[model]).observe(elapsed.as_secs_f64());
        }
        if let (Some(key), Some((prompt, completion))) = (&self.caller.key, self.record.tokens()) {
            for (kind, tokens) in [("prompt", prompt), ("completion", completion)] {
                metrics.ntl_key_tokens_total.with_label_values(&[key.as_str(), model, kind]).inc_by(tokens);
            }
        }
        if self.is_work {
            metrics.ntl_requests_in_flight.dec();
            self.app.lifecycle.leave();
        }
        telemetry::record_end(&self.trace, model, code);
        self.log_line(code, elapsed, is_cut_off);
    }
}

impl InFlight {
    /// Logs the end of the request. Text lines are cut at 200 characters, so fields without a maximum length
    /// are last.
    fn log_line(&self, code: u16, elapsed: Duration, is_cut_off: bool) {
        let ms = (elapsed.as_secs_f64() * 1e4).round() / 10.0;
        let reason = if is_cut_off { Some("cut off by the drain") } else { self.reason.as_deref() };
        let (prompt, completion) = self.record.tokens().unzip();
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: telemetry::ACCESS,
                    parent: None,
                    $level,
                    code,
                    client = self.caller.address.map(field::display),
                    key = self.caller.key.as_deref().map(field::display),
                    prompt,
                    completion,
                    ms,
                    id = self.id.as_deref().map(field::display),
                    model = self.record.known_model().map(field::display),
                    // As a string, which is escaped: it may quote a name from the request.
                    reason,
                    "{} {}",
                    self.method,
                    self.route,
                )
            };
        }
        if self.is_work {
            line!(Level::INFO);
        } else {
            line!(Level::DEBUG);
        }
    }
}

/// The layer; it runs inside the one that sets request ids.
pub(crate) async fn track(State(app): State<AppState>, mut request: Request, next: Next) -> Response {
    let mut in_flight = InFlight::start(app, &request);
    request.extensions_mut().insert(Arc::clone(&in_flight.record));
    let mut response =
        next.run(request).instrument(in_flight.log.clone()).instrument(in_flight.trace.clone()).await;
    let fingerprint = in_flight.record.fingerprint().map(HeaderValue::from_str);
    if let Some(Ok(fingerprint)) = fingerprint {
        response.headers_mut().insert(FINGERPRINT, fingerprint);
    }
    let code = response.status().as_u16();
    in_flight.reason = response.extensions().get().map(|RefusalReason(reason)| reason.clone());
    if let (Some(Rejection(reason)), true) = (response.extensions().get(), in_flight.is_work) {
        in_flight.app.metrics.ntl_requests_rejected_total.with_label_values(&[*reason]).inc();
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

//! Log lines on standard error, as text or as JSON, and traces for an OpenTelemetry collector (feature
//! `otel`).
//!
//! A request has two spans: a short one for log lines, and one with OpenTelemetry's attributes for traces
//! only.
//!
//! Prompts are logged only with `--log-prompts` (`routes::body`); answers and keys never are. Nothing waits
//! for the reader of standard error, see `queue`.

mod filter;
mod line;
#[cfg(not(feature = "otel"))]
mod no_traces;
#[cfg(feature = "otel")]
mod otlp;
mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::http::Method;
use clap::ValueEnum;
use tracing::field;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

pub use filter::FilterError;
use filter::ForeignTargets;
pub(crate) use line::ACCESS;
use line::{Milliseconds, TextLine};

#[cfg(not(feature = "otel"))]
use no_traces as traces;
#[cfg(feature = "otel")]
use otlp as traces;
use queue::LineQueue;
pub(crate) use queue::count_dropped_lines;
pub(crate) use traces::{record_end, request_span};

use ntl_common::printable::{printable, shortened};

/// Target of spans that only traces have.
const TRACE: &str = "ntl_server::trace";

/// Maximum time to wait for the reader of standard error at the end.
const FLUSH_TIME_MAX: Duration = Duration::from_millis(500);

/// Maximum length of a message that may quote files or requests, in characters.
const MESSAGE_CHARS_MAX: usize = 4000;

/// The lines on standard error, of which a process has one; `None` if there is no thread for them.
static LINES: LazyLock<Option<Arc<LineQueue>>> = LazyLock::new(|| LineQueue::start(std::io::stderr()).ok());

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    #[error("{origin}: {problem}")]
    Filter { origin: &'static str, problem: FilterError },
    #[error("cannot send traces to `{endpoint}`: {reason}")]
    Traces { endpoint: String, reason: String },
    #[error("the operating system refused a thread for log lines")]
    NoThread,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    pub format: LogFormat,
    /// Filter of log lines; `None` for `RUST_LOG`, else `info`.
    pub filter: Option<String>,
    /// Collector that traces are sent to.
    pub otlp_endpoint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text
    Compact,
    /// One JSON object per line
    Json,
}

#[must_use = "traces and lines that were not sent are lost unless it is finished"]
pub struct Telemetry(Option<traces::Traces>);

impl Telemetry {
    /// Sends the traces and writes the lines that were not sent yet.
    pub fn finish(self) {
        if let Some(traces) = self.0 {
            traces.finish();
        }
        flush();
    }
}

fn flush() {
    if let Some(lines) = &*LINES {
        lines.flush(FLUSH_TIME_MAX);
    }
}

/// Starts logging and tracing. A second call changes nothing.
pub fn start(config: &TelemetryConfig) -> Result<Telemetry, TelemetryError> {
    let from_environment = std::env::var("RUST_LOG").ok();
    let (origin, filter) = match &config.filter {
        Some(filter) => ("--log", Some(filter)),
        None => ("the environment variable RUST_LOG", from_environment.as_ref()),
    };
    let filter = filter.filter(|filter| !filter.is_empty()).map_or("info", String::as_str);
    let parsed = filter::parse(filter).map_err(|problem| TelemetryError::Filter { origin, problem })?;
    let out = LINES.as_ref().ok_or(TelemetryError::NoThread)?;
    let (traces, spans) = traces::start(config.otlp_endpoint.as_deref())?.unzip();
    let lines = log_lines(config.format, Arc::clone(out), parsed.foreign);
    let registry = tracing_subscriber::registry().with(spans).with(lines).with(parsed.filter);
    // Fails only if logging has already started, as in tests.
    if registry.try_init().is_ok() {
        std::panic::set_hook(Box::new(log_panic));
    }
    Ok(Telemetry(traces))
}

/// Logs a panic. The hook of the standard library would wait for the reader of standard error.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let thread = std::thread::current();
    tracing::error!(
        thread = thread.name(),
        location = panic.location().map(field::display),
        backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| field::display(&backtrace)),
        "panicked: {}",
        shortened(panic.payload_as_str().unwrap_or("no message"), MESSAGE_CHARS_MAX),
    );
}

/// Returns the name of a method of HTTP, or OpenTelemetry's word for any other method.
pub(crate) fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::CONNECT => "CONNECT",
        Method::DELETE => "DELETE",
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::TRACE => "TRACE",
        _ => "_OTHER",
    }
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn log_lines<S>(
    format: LogFormat,
    out: Arc<LineQueue>,
    foreign: ForeignTargets,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(out)
        // A closed standard error leaves no place to complain to.
        .log_internal_errors(false)
        .with_ansi(false);
    let lines = match format {
        LogFormat::Compact => lines.event_format(TextLine).boxed(),
        LogFormat::Json => {
            lines.with_timer(Milliseconds).json().flatten_event(true).with_span_list(false).boxed()
        }
    };
    let filter = filter_fn(move |metadata| metadata.target() != TRACE && foreign.allow(metadata));
    lines.with_filter(filter).boxed()
}

/// Writes the error that ends the program to standard error, on one line in the format of the log.
pub fn write_fatal(format: LogFormat, message: &str) {
    let message = printable(message);
    let message = shortened(&message, MESSAGE_CHARS_MAX);
    let line = match format {
        LogFormat::Compact => format!("ntl-server: {message}"),
        LogFormat::Json => {
            #[expect(clippy::disallowed_methods, reason = "the date of a log line")]
            let timestamp = format!("{:.3}", jiff::Timestamp::now());
            let target = env!("CARGO_CRATE_NAME");
            serde_json::json!({"timestamp": timestamp, "level": "ERROR", "message": message, "target": target})
                .to_string()
        }
    };
    print(&format!("{line}\n"));
    flush();
}

/// Writes a text to standard error after all log lines.
pub(crate) fn print(text: &str) {
    if let Some(mut lines) = LINES.as_deref() {
        // A queue that is full counts the line as dropped.
        let _ = lines.write_all(text.as_bytes());
    }
}

//! Log lines on standard error, as text or as JSON, and traces for an OpenTelemetry collector (feature `otel`).
//!
//! Prompts are logged only with `--log-prompts` (`routes::body`); answers and keys never are.

#[cfg(not(feature = "otel"))]
mod no_traces;
#[cfg(feature = "otel")]
mod otlp;

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

#[cfg(not(feature = "otel"))]
use no_traces as traces;
#[cfg(feature = "otel")]
use otlp as traces;
pub(crate) use traces::set_parent;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    #[error("`{0}` is not a log filter; try `debug`, or `ntl_models=debug,info`")]
    Filter(String),
    #[error("cannot send traces to `{endpoint}`: {reason}")]
    Traces { endpoint: String, reason: String },
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
    /// One JSON object a line
    Json,
}

#[must_use = "traces that were not sent are lost unless it is finished"]
pub struct Telemetry(Option<traces::Traces>);

impl Telemetry {
    /// Sends the traces that were not sent yet.
    pub fn finish(self) {
        if let Some(traces) = self.0 {
            traces.finish();
        }
    }
}

/// Starts logging and tracing. A second call changes nothing.
pub fn start(config: &TelemetryConfig) -> Result<Telemetry, TelemetryError> {
    let from_environment = std::env::var("RUST_LOG").ok();
    let filter = config.filter.as_deref().or(from_environment.as_deref());
    let filter = filter.filter(|filter| !filter.is_empty()).unwrap_or("info");
    let parsed = EnvFilter::try_new(filter).map_err(|_| TelemetryError::Filter(filter.to_owned()))?;
    let (traces, spans) = traces::start(config.otlp_endpoint.as_deref())?.unzip();
    let registry = tracing_subscriber::registry().with(spans).with(log_lines(config.format)).with(parsed);
    // Fails only where logging is started already, as between tests.
    let _ = registry.try_init();
    Ok(Telemetry(traces))
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn log_lines<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // A closed standard error leaves no place to complain to.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Compact => lines.compact().boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    }
}

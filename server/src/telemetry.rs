//! Log lines on standard error, for people or as JSON; and traces, where they are wanted (`traces`).
//!
//! Prompts are logged only where that was asked for (`extract`), answers and keys never; most of what happens is in the metrics instead.

use std::io::IsTerminal;

use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::args::LogFormat;
use crate::config::TelemetryConfig;
use crate::traces::{self, Traces, TracesError};

/// Why nothing can be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// A log filter that cannot be read.
    #[error("`{0}` is no log filter; try `debug`, or `ntl_models=debug,info`")]
    Filter(String),
    /// Traces that cannot be sent.
    #[error(transparent)]
    Traces(#[from] TracesError),
}

/// What is told, until it is finished.
#[must_use = "traces that were not sent are lost unless it is finished"]
pub struct Telemetry(Option<Traces>);

impl Telemetry {
    /// Sends what was not sent yet.
    pub fn finish(self) {
        if let Some(traces) = self.0 {
            traces.finish();
        }
    }
}

/// Starts logging. The filter comes first, then `RUST_LOG`, then `info`. A second call changes nothing.
///
/// # Errors
/// When the filter cannot be read, or no traces can be sent.
pub fn start(config: &TelemetryConfig) -> Result<Telemetry, TelemetryError> {
    let from_environment = std::env::var("RUST_LOG").ok();
    let filter = config.filter.as_deref().or(from_environment.as_deref());
    let filter = filter.filter(|filter| !filter.is_empty()).unwrap_or("info");
    let parsed = EnvFilter::try_new(filter).map_err(|_| TelemetryError::Filter(filter.to_owned()))?;
    let (traces, spans) = traces::start(config.otlp_endpoint.as_deref())?.unzip();
    let registry = tracing_subscriber::registry().with(spans).with(lines(config.format)).with(parsed);
    // Fails only where logging has been started already, as between tests.
    let _ = registry.try_init();
    Ok(Telemetry(traces))
}

/// A layer of some registry.
pub(crate) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn lines<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Compact => lines.compact().boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    }
}

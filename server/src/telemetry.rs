//! Log lines on standard error, for people or as JSON.
//!
//! Prompts, answers and keys are never logged above `debug`; most of what happens is in the metrics instead.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// A log filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("`{filter}` is no log filter; try `debug`, or `ntl_models=debug,info`")]
pub struct FilterError {
    filter: String,
}

/// Starts logging. `filter` comes first, then `RUST_LOG`, then `info`. A second call changes nothing.
///
/// # Errors
/// When the filter cannot be read.
pub fn start(format: LogFormat, filter: Option<&str>) -> Result<(), FilterError> {
    let from_environment = std::env::var("RUST_LOG").ok();
    let filter = filter.or(from_environment.as_deref()).filter(|filter| !filter.is_empty()).unwrap_or("info");
    let parsed = EnvFilter::try_new(filter).map_err(|_| FilterError { filter: filter.to_owned() })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // Fails only where logging has been started already, as between tests.
    let _ = match format {
        LogFormat::Compact => lines.compact().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}

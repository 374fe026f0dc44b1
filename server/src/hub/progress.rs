//! The progress of a download: a bar on a terminal, otherwise log lines.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between two log lines about one file.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Files below this size have neither a bar nor lines, in bytes.
const SHOWN_BYTES_MIN: u64 = 1 << 20;

/// The progress of one file.
pub(super) struct Progress {
    file: String,
    bytes: u64,
    bar: Option<ProgressBar>,
    logged: Instant,
}

impl Progress {
    pub(super) fn new(file: &str, bytes: u64) -> Self {
        let is_shown = bytes >= SHOWN_BYTES_MIN;
        let bar = (is_shown && std::io::stderr().is_terminal()).then(|| bar(file, bytes));
        if is_shown && bar.is_none() {
            tracing::info!(file, bytes, "downloading");
        }
        Self { file: file.to_owned(), bytes, bar, logged: Instant::now() }
    }

    /// Shows that the first `bytes` bytes are there.
    pub(super) fn set(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        } else if self.logged.elapsed() >= LINE_INTERVAL {
            self.logged = Instant::now();
            tracing::info!(file = self.file, downloaded = bytes, bytes = self.bytes, "downloading");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(file: &str, bytes: u64) -> ProgressBar {
    const TEMPLATE: &str = "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(bytes).with_style(style).with_prefix(file.to_owned())
}

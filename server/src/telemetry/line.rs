//! Log lines as text: `TIME LEVEL TARGET: MESSAGE FIELDS`.
//!
//! The line of a request ([`ACCESS`]) has no target and fewer than [`ACCESS_CHARS_MAX`] characters, so that a
//! terminal shows it whole. Other lines have at most [`CHARS_MAX`] characters. Control characters are
//! escaped.

use std::fmt;

use ntl_common::printable::{printable, shortened};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::queue::LINE_BYTES_MAX;

/// Target of the event that reports a finished request.
pub(crate) const ACCESS: &str = "ntl_server::access";

/// A line of a request has fewer characters.
const ACCESS_CHARS_MAX: usize = 200;

/// Maximum number of characters of any other line, each of which has at most four bytes.
const CHARS_MAX: usize = LINE_BYTES_MAX / 4 - 1;

/// The time in UTC, to the millisecond.
pub(super) struct Milliseconds;

impl FormatTime for Milliseconds {
    #[expect(clippy::disallowed_methods, reason = "the date of a log line")]
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:.3}", jiff::Timestamp::now())
    }
}

/// Formats events as text.
pub(super) struct TextLine;

impl<S, N> FormatEvent<S, N> for TextLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut line = String::new();
        let mut text = Writer::new(&mut line);
        Milliseconds.format_time(&mut text)?;
        write!(text, " {} ", metadata.level())?;
        if metadata.target() != ACCESS {
            write!(text, "{}: ", metadata.target())?;
        }
        context.format_fields(text.by_ref(), event)?;
        for span in context.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                write!(text, " {fields}")?;
            }
        }
        let chars_max = if metadata.target() == ACCESS { ACCESS_CHARS_MAX - 1 } else { CHARS_MAX };
        writeln!(writer, "{}", shortened(&printable(&line), chars_max))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex, PoisonError};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A buffer for log lines.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(events: impl FnOnce()) -> String {
        let log = Log::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .event_format(TextLine);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), events);
        let bytes = log.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_has_the_target_the_message_and_the_fields_of_its_span() {
        let line = logged(|| {
            let _inside = tracing::info_span!("request", id = 7).entered();
            tracing::warn!(target: "ntl_server::here", count = 3, "many");
        });
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.000Z".len(), "{line}");
        assert_eq!(rest, "WARN ntl_server::here: many count=3 id=7\n");
    }

    #[test]
    fn the_line_of_a_request_has_fewer_than_two_hundred_characters() {
        let long = "é".repeat(500);
        let line = logged(|| tracing::info!(target: ACCESS, id = %long, "POST /v1/completions"));
        assert_eq!(line.trim_end().chars().count(), 199, "{line}");
        assert!(line.ends_with("é…\n") && line.contains(" INFO POST /v1/completions id=é"), "{line}");
        let other = logged(|| tracing::info!(path = %long, "loaded"));
        assert!(other.contains(&long), "only lines of requests are cut so early");
    }

    #[test]
    fn any_line_has_a_maximum_length_and_no_control_characters() {
        let line = logged(|| tracing::info!("{}", "é".repeat(1 << 20)));
        assert!(line.len() <= LINE_BYTES_MAX && line.ends_with("é…\n"), "{}", line.len());
        let line = logged(|| tracing::info!(path = %"a\nb\u{1b}[2Jc", "two\r\nlines\u{7}"));
        let rest = line.trim_end_matches('\n');
        assert!(!rest.contains(char::is_control), "{line:?}");
        assert!(rest.contains("two\\r\\nlines") && rest.contains("a\\nb"), "{line}");
    }
}

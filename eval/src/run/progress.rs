//! Progress of a phase: a bar on a terminal, otherwise a line for every tenth, or nothing.

use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use crate::format::shortened;

/// The bar fills the rest of the line.
const TEMPLATE: &str = "{prefix} [{wide_bar}] {pos}/{len} {rate}, {eta} left{msg}";

/// Leaves room for the figures on a terminal of 80 columns.
const NAME_CHARS_MAX: usize = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Bar,
    /// Prints a line for every tenth of the requests.
    Lines,
    Silent,
}

#[derive(Debug)]
pub struct Progress {
    style: Style,
    bar: ProgressBar,
    name: String,
    failed: usize,
    /// Number of requests that were done before the clock started.
    skipped: u64,
    clock: Instant,
}

impl Progress {
    pub fn new(style: Style, name: &str, total: usize) -> Self {
        let bar = if style == Style::Bar { ProgressBar::new(total as u64) } else { ProgressBar::hidden() };
        bar.set_length(total as u64);
        // The template is a constant. If it were broken, only the look of the bar would change.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
                // If this fails, the bar is drawn without the rate.
                let _ = write!(out, "{:.1}/s", state.per_sec());
            }));
        }
        bar.set_prefix(shortened(name, NAME_CHARS_MAX));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { style, bar, name: name.to_owned(), failed: 0, skipped: 0, clock: Instant::now() }
    }

    /// Skips requests whose answers are known. They do not count towards the rate.
    pub fn skip(&mut self, done: usize) {
        self.skipped = done as u64;
        self.bar.set_position(self.skipped);
        self.bar.reset_eta();
        self.clock = Instant::now();
    }

    pub fn step(&mut self, failed: bool, err: &mut dyn Write) -> io::Result<()> {
        self.failed += usize::from(failed);
        let note = if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        self.bar.inc(1);
        if self.style == Style::Lines {
            let done = self.bar.position();
            let total = self.bar.length().unwrap_or(0).max(1);
            if done * 10 / total > (done - 1) * 10 / total {
                writeln!(err, "{}: {done}/{total}{note}{}", self.name, self.pace(done, total))?;
            }
        }
        self.bar.set_message(note);
        Ok(())
    }

    fn pace(&self, done: u64, total: u64) -> String {
        let requested = done.saturating_sub(self.skipped);
        let rate = requested as f64 / self.clock.elapsed().as_secs_f64().max(1e-6);
        if done >= total {
            return format!(", {rate:.1}/s");
        }
        let left = Duration::from_secs_f64((total - done) as f64 / rate.max(1e-6));
        format!(", {rate:.1}/s, {} left", HumanDuration(left))
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::*;

    /// Returns the printed lines without the pace.
    fn shown(style: Style, total: usize, skipped: usize) -> Vec<String> {
        let mut progress = Progress::new(style, "arithmetic", total);
        let mut err = Vec::new();
        progress.skip(skipped);
        for index in skipped..total {
            progress.step(index == 24, &mut err).unwrap();
        }
        progress.finish();
        let text = String::from_utf8(err).unwrap();
        text.lines()
            .map(|line| line.split("/s").next().unwrap().rsplit_once(", ").unwrap().0.to_owned())
            .collect()
    }

    #[test]
    fn without_a_terminal_every_tenth_prints_a_line() {
        let lines = shown(Style::Lines, 50, 0);
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[..2], ["arithmetic: 5/50", "arithmetic: 10/50"]);
        assert_eq!(lines[9], "arithmetic: 50/50, 1 failed");
        assert_eq!(shown(Style::Lines, 3, 0).len(), 3);
    }

    #[test]
    fn earlier_answers_are_not_shown_as_progress() {
        assert_eq!(shown(Style::Lines, 50, 30)[0], "arithmetic: 35/50");
    }

    /// A terminal that keeps the lines that are written to it.
    #[derive(Debug, Clone, Default)]
    struct Terminal(Arc<Mutex<Vec<String>>>);

    const WIDTH: u16 = 80;

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            WIDTH
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push(text.to_owned());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_bar_fits_a_terminal_of_80_columns() {
        let terminal = Terminal::default();
        let mut progress = Progress::new(Style::Bar, "multiplication extrapolate scoring", 43_246);
        progress.bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        for index in 0..43_000 {
            progress.step(index < 1_234, &mut Vec::new()).unwrap();
        }
        progress.bar.abandon();
        let lines = terminal.0.lock().unwrap().clone();
        let shown = lines.iter().rfind(|line| line.contains("43000/43246")).unwrap();
        assert!(shown.contains("1234 failed") && shown.contains("/s, "), "{shown:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= usize::from(WIDTH)), "{lines:?}");
    }

    #[test]
    fn silence_is_silent() {
        assert!(shown(Style::Silent, 20, 0).is_empty());
    }
}

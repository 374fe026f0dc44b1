//! How far a run is: a bar on a terminal, a line for every tenth elsewhere, or nothing.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TEMPLATE: &str = "{prefix} [{bar:30}] {pos}/{len} {per_sec}, {eta} left{msg}";

/// What to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A bar that is redrawn.
    Bar,
    /// A line for every tenth.
    Lines,
    /// Nothing.
    Silent,
}

/// The state of one run.
#[derive(Debug)]
pub struct Progress {
    style: Style,
    bar: ProgressBar,
    name: String,
    failed: usize,
}

impl Progress {
    /// Nothing is done yet, of `total`.
    pub fn new(style: Style, name: &str, total: usize) -> Self {
        let bar = if style == Style::Bar { ProgressBar::new(total as u64) } else { ProgressBar::hidden() };
        bar.set_length(total as u64);
        // The template is a constant; with a broken one the bar would look different and nothing else.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { style, bar, name: name.to_owned(), failed: 0 }
    }

    /// One more item is done.
    ///
    /// # Errors
    /// `err` cannot be written to.
    pub fn step(&mut self, failed: bool, err: &mut dyn Write) -> io::Result<()> {
        self.failed += usize::from(failed);
        let note = if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        self.bar.inc(1);
        if self.style == Style::Lines {
            let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0).max(1));
            if done * 10 / total > (done - 1) * 10 / total {
                writeln!(err, "{}: {done}/{total}{note}", self.name)?;
            }
        }
        self.bar.set_message(note);
        Ok(())
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(style: Style, total: usize) -> String {
        let (mut progress, mut err) = (Progress::new(style, "arithmetic", total), Vec::new());
        for index in 0..total {
            progress.step(index == 24, &mut err).unwrap();
        }
        progress.finish();
        String::from_utf8(err).unwrap()
    }

    #[test]
    fn without_a_terminal_every_tenth_is_a_line() {
        let text = shown(Style::Lines, 50);
        assert_eq!(text.lines().count(), 10);
        assert!(text.starts_with("arithmetic: 5/50\narithmetic: 10/50\n"), "{text}");
        assert!(text.ends_with("arithmetic: 50/50, 1 failed\n"), "{text}");
        assert_eq!(shown(Style::Lines, 3).lines().count(), 3);
    }

    #[test]
    fn silence_is_silent() {
        assert_eq!(shown(Style::Silent, 20), "");
    }
}

//! Writes log lines to standard error from a separate thread, so that no request waits for the reader of the
//! log.
//!
//! Between the two is a queue with a maximum size in bytes: lines that do not fit are dropped and counted.
//! `tracing-appender` counts lines instead, and may wait for standard output at the end of the process.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use prometheus::IntCounter;

/// Maximum size of the lines that wait, in bytes.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// Maximum size of one line, in bytes.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

static DROPPED: OnceLock<IntCounter> = OnceLock::new();

/// Counts dropped lines with this counter from now on. Only the first call has an effect.
pub(crate) fn count_dropped_lines(counter: &IntCounter) {
    DROPPED.get_or_init(|| counter.clone());
}

#[derive(Default)]
pub(super) struct LineQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Lines that the thread has not taken yet.
    waiting: Vec<u8>,
    is_writing: bool,
}

impl LineQueue {
    /// Starts the thread that writes the lines.
    pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let queue = Arc::<Self>::default();
        let lines = Arc::clone(&queue);
        thread::Builder::new().name("log".to_owned()).spawn(move || lines.write_all_to(out))?;
        Ok(queue)
    }

    fn write_all_to(&self, mut out: impl Write) {
        loop {
            let mut state = self.lock();
            state.is_writing = false;
            self.changed.notify_all();
            let mut state = self
                .changed
                .wait_while(state, |state| state.waiting.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            let lines = std::mem::take(&mut state.waiting);
            state.is_writing = true;
            drop(state);
            // There is no place to report that standard error is closed.
            let _ = out.write_all(&lines);
        }
    }

    /// Waits until all lines are written, for at most `time_max`.
    pub(super) fn flush(&self, time_max: Duration) {
        // Whether the time is over makes no difference: lines that are still waiting are lost.
        let _ = self
            .changed
            .wait_timeout_while(self.lock(), time_max, |state| state.is_writing || !state.waiting.is_empty());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds whole lines: a call is one line.
impl Write for &LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        if line.len() <= LINE_BYTES_MAX && state.waiting.len() + line.len() <= QUEUE_BYTES_MAX {
            state.waiting.extend_from_slice(line);
            self.changed.notify_all();
        } else if let Some(dropped) = DROPPED.get() {
            dropped.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Standard error that nothing reads: each write waits until the test allows it.
    struct Blocked {
        written: mpsc::Sender<Vec<u8>>,
        may_write: mpsc::Receiver<()>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Once the test has dropped its side, writes pass.
            let _ = self.may_write.recv();
            let _ = self.written.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nothing_reads_are_dropped_and_counted_and_the_last_ones_are_written_in_order() {
        let (written, lines) = mpsc::channel();
        let (allow, may_write) = mpsc::channel();
        let queue = LineQueue::start(Blocked { written, may_write }).unwrap();
        let counter = DROPPED.get_or_init(|| IntCounter::new("dropped", "lines").unwrap());
        let before = counter.get();
        let line = [b'x'; LINE_BYTES_MAX];
        // The thread may have taken the first ones.
        let count = 2 * QUEUE_BYTES_MAX / LINE_BYTES_MAX + 10;
        for _ in 0..count {
            (&*queue).write_all(&line).unwrap();
        }
        (&*queue).write_all(&[b'x'; LINE_BYTES_MAX + 1]).unwrap();
        let dropped = counter.get() - before;
        assert!(dropped >= 11, "{dropped}");
        queue.flush(Duration::ZERO);
        drop(allow);
        queue.flush(PATIENCE);
        drop(queue);
        let bytes: usize = lines.try_iter().map(|bytes| bytes.len()).sum();
        assert_eq!(bytes, (count + 1 - dropped as usize) * LINE_BYTES_MAX);
    }

    #[test]
    fn flushing_waits_for_lines_that_are_being_written() {
        let (written, lines) = mpsc::channel();
        let (allow, may_write) = mpsc::channel();
        let queue = LineQueue::start(Blocked { written, may_write }).unwrap();
        for line in ["one\n", "two\n"] {
            (&*queue).write_all(line.as_bytes()).unwrap();
        }
        drop(allow);
        queue.flush(PATIENCE);
        let text: Vec<u8> = lines.try_iter().flatten().collect();
        assert_eq!(text, b"one\ntwo\n");
    }
}

//! The event channel of one job.
//!
//! Invariant: the number of unread events stays bounded, because the engine does not step a stalled job until
//! the client has read some of its events. A slow client therefore slows down only its own response.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ntl_core::contract::{Event, TokenText};
use tokio::sync::mpsc;

/// A job with about this many bytes of unread events is stalled: the engine does not step it.
const UNREAD_BYTES_MAX: usize = 256 << 10;

#[derive(Debug, Default)]
struct Backlog {
    unread_bytes: AtomicUsize,
    /// Whether to wake the engine when the client has read enough.
    wake_on_read: AtomicBool,
}

/// The engine's end of the channel.
pub struct EventSender {
    events: mpsc::UnboundedSender<Event>,
    backlog: Arc<Backlog>,
}

/// The client's end of the channel: the events of one job, in order. Dropping it cancels the job.
pub struct JobEvents {
    events: mpsc::UnboundedReceiver<Event>,
    backlog: Arc<Backlog>,
    /// Wakes the engine's thread.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for JobEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobEvents").field("backlog", &self.backlog).finish_non_exhaustive()
    }
}

/// Creates a channel. `wake` must wake the engine. It is called when the client has read events or
/// has dropped its end.
pub fn channel(wake: impl Fn() + Send + Sync + 'static) -> (EventSender, JobEvents) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let backlog = Arc::<Backlog>::default();
    let events = EventSender { events: sender, backlog: Arc::clone(&backlog) };
    (events, JobEvents { events: receiver, backlog, wake: Box::new(wake) })
}

impl EventSender {
    /// Returns whether the client has dropped its end.
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Waits until the client has dropped its end.
    pub async fn closed(&self) {
        self.events.closed().await;
    }

    /// Returns whether the client has read enough for the job to be stepped. If not, the channel wakes the
    /// engine when it has.
    pub fn has_room(&self) -> bool {
        if self.unread_bytes() < UNREAD_BYTES_MAX {
            return true;
        }
        self.backlog.wake_on_read.store(true, Ordering::SeqCst);
        // A read just before the store did not see the flag and did not wake the engine.
        self.unread_bytes() < UNREAD_BYTES_MAX
    }

    pub(crate) fn unread_bytes(&self) -> usize {
        self.backlog.unread_bytes.load(Ordering::SeqCst)
    }

    /// Sends an event. Returns `false` if the client has dropped its end.
    pub fn send(&self, event: Event) -> bool {
        self.backlog.unread_bytes.fetch_add(bytes(&event), Ordering::SeqCst);
        self.events.send(event).is_ok()
    }
}

impl JobEvents {
    /// Waits for the next event. Returns `None` after the last one, or if the engine has died.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await?;
        Some(self.read(event))
    }

    /// Like [`Self::next`], but blocks.
    pub fn next_blocking(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv()?;
        Some(self.read(event))
    }

    fn read(&self, event: Event) -> Event {
        let bytes = bytes(&event);
        let left = self.backlog.unread_bytes.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if left < UNREAD_BYTES_MAX && self.backlog.wake_on_read.swap(false, Ordering::SeqCst) {
            (self.wake)();
        }
        event
    }
}

impl Drop for JobEvents {
    fn drop(&mut self) {
        self.events.close();
        (self.wake)();
    }
}

/// Returns the approximate size of an event in memory.
fn bytes(event: &Event) -> usize {
    let more = match event {
        Event::Text { text, token, .. } => text.len() + token.as_ref().map_or(0, token_bytes),
        Event::Prompt(tokens) => tokens.iter().map(token_bytes).sum(),
        Event::Number(outcome) => outcome.distribution.bytes(),
        Event::Field(number) => number.outcome.distribution.bytes(),
        _ => 0,
    };
    size_of::<Event>() + more
}

fn token_bytes(token: &TokenText) -> usize {
    size_of::<TokenText>() + size_of_val(&token.top[..])
}

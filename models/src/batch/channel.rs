//! The events of one job on their way out, and how an engine learns that somebody reads them.
//!
//! Invariant: what nobody has read yet stays bounded, because a job with too much of it is not stepped until some of it
//! is read. So a client that reads slowly delays its own answer and nobody's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use ntl_core::engine::{Event, TokenText};
use tokio::sync::mpsc;

use super::queue::Message;

/// Bytes of unread events, about, beyond which a job waits.
const UNREAD_MAX: usize = 256 << 10;

/// What both ends know of a channel.
#[derive(Debug, Default)]
struct Backlog {
    unread: AtomicUsize,
    /// Whether the engine waits for somebody to read.
    waits: AtomicBool,
}

/// The engine's end.
pub(super) struct EventSender {
    events: mpsc::UnboundedSender<Event>,
    backlog: Arc<Backlog>,
}

/// The events of one job, in order. Dropping it cancels the job.
#[derive(Debug)]
pub struct JobEvents {
    events: mpsc::UnboundedReceiver<Event>,
    backlog: Arc<Backlog>,
    engine: Sender<Message>,
}

/// A channel for one job of the engine behind `engine`.
pub(super) fn channel(engine: Sender<Message>) -> (EventSender, JobEvents) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let backlog = Arc::<Backlog>::default();
    let events = EventSender { events: sender, backlog: Arc::clone(&backlog) };
    (events, JobEvents { events: receiver, backlog, engine })
}

impl EventSender {
    /// Whether nobody waits for the events any more.
    pub(super) fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether enough was read for more to be made. If not, the engine is woken once it was.
    pub(super) fn has_room(&self) -> bool {
        let has_room = || self.backlog.unread.load(Ordering::SeqCst) < UNREAD_MAX;
        if has_room() {
            return true;
        }
        self.backlog.waits.store(true, Ordering::SeqCst);
        // What was read before the reader could see that somebody waits wakes nobody.
        has_room()
    }

    /// False when nobody waits for events any more.
    pub(super) fn send(&self, event: Event) -> bool {
        self.backlog.unread.fetch_add(bytes(&event), Ordering::SeqCst);
        self.events.send(event).is_ok()
    }
}

impl JobEvents {
    /// The next event. `None` after the last one, or when the engine died.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await?;
        Some(self.read(event))
    }

    /// The same for code that is not asynchronous.
    pub fn next_blocking(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv()?;
        Some(self.read(event))
    }

    fn read(&self, event: Event) -> Event {
        let bytes = bytes(&event);
        let left = self.backlog.unread.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if left < UNREAD_MAX && self.backlog.waits.swap(false, Ordering::SeqCst) {
            self.wake();
        }
        event
    }

    fn wake(&self) {
        // An engine that is gone needs no waking.
        let _ = self.engine.send(Message::Wake);
    }
}

impl Drop for JobEvents {
    fn drop(&mut self) {
        self.events.close();
        self.wake();
    }
}

/// Memory that an event takes up, about.
fn bytes(event: &Event) -> usize {
    let token = |token: &TokenText| size_of::<TokenText>() + size_of_val(&token.top[..]);
    let more = match event {
        Event::Text { text, token: told, .. } => text.len() + told.as_ref().map_or(0, token),
        Event::Prompt(tokens) => tokens.iter().map(token).sum(),
        _ => 0,
    };
    size_of::<Event>() + more
}

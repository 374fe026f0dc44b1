//! The events of one job to its client.

use std::sync::Arc;

use ntl_core::contract::Event;
use ntl_engine::EventSender;
use tokio::sync::Notify;

pub(super) struct ClientEvents {
    pub(super) events: EventSender,
    /// Notified when the client has read events.
    pub(super) read: Arc<Notify>,
}

impl ClientEvents {
    /// Sends a part of the text before a number, once the client has read enough of the parts before it.
    pub(super) async fn send_text(&self, text: String, tokens: usize) {
        self.send(Event::Text { choice: 0, text, tokens, token: None, offset: 0 }).await;
    }

    /// Sends an event, once the client has read enough of the events before it.
    pub(super) async fn send(&self, event: Event) {
        while !self.events.has_room() {
            self.read.notified().await;
        }
        self.events.send(event);
    }
}

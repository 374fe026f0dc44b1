//! The turn of a text that the engine writes by itself: it waits in the queue like a job, and counts as
//! running until it ends.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ntl_core::contract::EngineError;
use ntl_engine::{EndReason, JobReservation};

use super::gate::Permit;
use super::run::{Counted, Load};
use super::{RemoteEngine, Shared};

/// A running text, which counts as cancelled if it is dropped before [`end`](Self::end).
pub struct TextTurn {
    shared: Arc<Shared>,
    sequences: usize,
    ended: Option<EndReason>,
    _permit: Permit,
    memory: Option<JobReservation>,
    _running: Counted,
}

impl TextTurn {
    /// Releases the memory of the request, once it is sent.
    pub fn release_memory(&mut self) {
        self.memory = None;
    }

    /// Ends the turn, for this reason.
    pub fn end(mut self, reason: EndReason) {
        self.ended = Some(reason);
    }
}

impl Drop for TextTurn {
    fn drop(&mut self) {
        let reason = self.ended.unwrap_or(EndReason::Abort);
        (0..self.sequences).for_each(|_| self.shared.observer.on_end(reason));
    }
}

impl RemoteEngine {
    /// Waits until a request of a client for texts may be sent. `bytes` is the memory of the request.
    ///
    /// # Errors
    /// If the queue has too few free slots, or the request has waited in it for too long.
    pub async fn begin_text(&self, client: u64, sequences: u32, bytes: u64) -> Result<TextTurn, EngineError> {
        let shared = Arc::clone(&self.shared);
        let slots = shared.queue_slots(sequences)?;
        let sequences = sequences as usize;
        let queued = Instant::now();
        let (permit, memory) = {
            let _waiting = shared.load.enter(Load::Queued, sequences);
            shared.turn(&shared.texts, client, bytes, queued, &AtomicBool::new(false)).await?
        };
        drop(slots);
        shared.observer.on_start(queued.elapsed());
        let running = shared.load.enter(Load::Running, sequences);
        let memory = Some(memory);
        Ok(TextTurn { shared, sequences, ended: None, _permit: permit, memory, _running: running })
    }
}

//! One sequence inside an engine that only knows sequences: logits come out, tokens go in.
//!
//! A [`Tap`] sits where the engine chooses tokens. It hands the logits out, and chooses what it is told. Invariant: a
//! [`Sequence`] is not dropped before the engine has dropped its tap, for an answer to somebody who has left kills
//! mistral.rs 0.8.1, and with it all other sequences. Not here: mistral.rs itself (`backend`).

mod model;
#[cfg(test)]
mod tests;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use ntl_core::engine::ModelError;

pub(crate) use model::SequenceModel;

/// Says once the engine is through with a sequence why it ended, if not as it should; while it lives, the engine can
/// answer.
pub(crate) type Reason = Box<dyn FnMut() -> Option<String> + Send>;

/// An engine that computes sequences.
pub(crate) trait Host: Send {
    /// Begins a sequence with these ids. It ends after `answer_max` tokens, if that is given, or when the tap says so. What
    /// is returned must be kept until the tap is dropped.
    ///
    /// # Errors
    /// When the engine is gone.
    fn submit(&self, ids: Vec<u32>, answer_max: Option<usize>, tap: Tap) -> Result<Reason, String>;

    /// Sequences that it computes at once.
    fn at_once(&self) -> usize;
}

/// Why the engine gave no logits.
#[derive(Debug, thiserror::Error)]
#[error("mistral.rs: {0}")]
struct Failed(String);

pub(crate) fn failed(reason: impl Into<String>) -> ModelError {
    ModelError::Compute(Box::new(Failed(reason.into())))
}

/// What stands in the place of the engine's sampling.
pub(crate) struct Tap {
    logits: Sender<Vec<f32>>,
    /// What is to be chosen next; closed when the sequence is to end.
    tokens: Mutex<Receiver<u32>>,
    ends_by_length: bool,
}

impl Tap {
    /// Hands the logits out and waits for the token that is to be chosen; `None` ends the sequence without one.
    pub(crate) fn choose(&self, logits: Vec<f32>) -> Option<u32> {
        // After a prompt mistral.rs computes a step more than it is asked for, whose logits nobody takes.
        let _unwanted = self.logits.send(logits);
        let next = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).recv();
        // What ends by its length is in a batch with others, which an end without a token would harm.
        next.ok().or(self.ends_by_length.then_some(0))
    }
}

/// A sequence that the engine holds.
struct Sequence {
    logits: Receiver<Vec<f32>>,
    tokens: Option<Sender<u32>>,
    reason: Reason,
}

impl Sequence {
    /// A sequence that can be continued for as long as it lives. While it waits for a token, the engine does nothing else,
    /// so there must be no other.
    fn open(host: &dyn Host, ids: Vec<u32>) -> Result<Self, ModelError> {
        let (sender, tokens) = mpsc::channel();
        Self::start(host, (ids, None), (Some(sender), tokens))
    }

    /// A sequence that is continued by these tokens and then over.
    fn scripted(host: &dyn Host, ids: Vec<u32>, script: &[u32]) -> Result<Self, ModelError> {
        let (sender, tokens) = mpsc::channel();
        let sent = script.iter().try_for_each(|&token| sender.send(token));
        sent.map_err(|_| failed("a script was lost"))?;
        drop(sender);
        Self::start(host, (ids, Some(script.len() + 1)), (None, tokens))
    }

    fn start(
        host: &dyn Host,
        (ids, answer_max): (Vec<u32>, Option<usize>),
        (tokens, receiver): (Option<Sender<u32>>, Receiver<u32>),
    ) -> Result<Self, ModelError> {
        let (sender, logits) = mpsc::channel();
        let tap = Tap { logits: sender, tokens: Mutex::new(receiver), ends_by_length: answer_max.is_some() };
        let reason = host.submit(ids, answer_max, tap).map_err(failed)?;
        Ok(Self { logits, tokens, reason })
    }

    /// Says which token comes next.
    fn append(&mut self, token: u32) -> Result<(), ModelError> {
        let sent = self.tokens.as_ref().is_some_and(|tokens| tokens.send(token).is_ok());
        if sent { Ok(()) } else { Err(self.failure()) }
    }

    /// Logits behind the ids, later behind each token in turn.
    fn logits(&mut self) -> Result<Vec<f32>, ModelError> {
        self.logits.recv().map_err(|_| self.failure())
    }

    fn failure(&mut self) -> ModelError {
        failed((self.reason)().unwrap_or_else(|| "it ended a sequence without a reason".to_owned()))
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.tokens = None;
        while self.logits.recv().is_ok() {}
    }
}

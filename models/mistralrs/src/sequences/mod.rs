//! The engine contract ([`BatchModel`](ntl_core::contract::BatchModel)) over an engine that only generates
//! sequences, such as mistral.rs: [`SequenceModel`] over a [`SequenceEngine`].
//!
//! An [`ExternalSampler`] replaces the engine's sampler: it sends the logits to the model and returns the
//! token that it receives. Invariant: a `Sequence` is not dropped before the engine has dropped its sampler,
//! because mistral.rs 0.8.1 dies when it responds to a request whose receiver is gone.

mod model;
#[cfg(test)]
mod tests;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use ntl_core::contract::ModelError;

pub(crate) use model::SequenceModel;

/// Returns why the engine ended a sequence early, if it did. The engine can respond for as long as this is
/// not dropped.
pub(crate) type FailureReason = Box<dyn FnMut() -> Option<String> + Send>;

/// An engine that generates sequences.
pub(crate) trait SequenceEngine: Send {
    /// Starts a sequence with these ids. It ends after `tokens_max` generated tokens, or when the sampler
    /// returns no token. The caller must keep the result until the engine has dropped the sampler.
    ///
    /// # Errors
    /// If the engine has stopped.
    fn submit(
        &self,
        ids: Vec<u32>,
        tokens_max: Option<usize>,
        sampler: ExternalSampler,
    ) -> Result<FailureReason, String>;

    /// Returns the number of sequences that the engine computes in one batch.
    fn batch_max(&self) -> usize;

    /// Returns the size of the keys and values of one token of a sequence, in bytes.
    fn token_bytes(&self) -> u64;
}

fn failed(reason: impl Into<String>) -> ModelError {
    ModelError::Compute(reason.into().into())
}

/// Replaces the engine's sampler for one sequence.
pub(crate) struct ExternalSampler {
    logits: Sender<Vec<f32>>,
    /// The tokens to return, in order. The channel is closed when the sequence should end.
    tokens: Mutex<Receiver<u32>>,
    ends_by_length: bool,
}

impl ExternalSampler {
    /// Sends the logits and waits for the token to append. `None` ends the sequence.
    pub(crate) fn sample(&self, logits: Vec<f32>) -> Option<u32> {
        // After a prompt, mistral.rs computes one step more than requested. The receiver of its logits may be
        // gone.
        let _unwanted = self.logits.send(logits);
        let next = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).recv();
        // A sequence that ends by its length shares a batch with others. An end without a token would harm
        // them.
        next.ok().or(self.ends_by_length.then_some(0))
    }
}

/// A sequence in the engine.
struct Sequence {
    logits: Receiver<Vec<f32>>,
    /// `None` if all its tokens were sent at the start.
    tokens: Option<Sender<u32>>,
    failure_reason: FailureReason,
}

impl Sequence {
    /// Starts a sequence that [`append`](Self::append) continues. It must be the only sequence, since the
    /// engine blocks while it waits for a token.
    fn interactive(engine: &dyn SequenceEngine, ids: Vec<u32>) -> Result<Self, ModelError> {
        let (token_sender, tokens) = mpsc::channel();
        let (sender, logits) = mpsc::channel();
        let sampler = ExternalSampler { logits: sender, tokens: Mutex::new(tokens), ends_by_length: false };
        let failure_reason = engine.submit(ids, None, sampler).map_err(failed)?;
        Ok(Self { logits, tokens: Some(token_sender), failure_reason })
    }

    /// Starts a sequence that continues with the `forced` tokens and then ends.
    fn forced(engine: &dyn SequenceEngine, ids: Vec<u32>, forced: &[u32]) -> Result<Self, ModelError> {
        let (token_sender, tokens) = mpsc::channel();
        for &token in forced {
            token_sender.send(token).map_err(|_| failed("a forced token was lost"))?;
        }
        let (sender, logits) = mpsc::channel();
        let sampler = ExternalSampler { logits: sender, tokens: Mutex::new(tokens), ends_by_length: true };
        let failure_reason = engine.submit(ids, Some(forced.len() + 1), sampler).map_err(failed)?;
        Ok(Self { logits, tokens: None, failure_reason })
    }

    fn append(&mut self, token: u32) -> Result<(), ModelError> {
        let sent = self.tokens.as_ref().is_some_and(|tokens| tokens.send(token).is_ok());
        if sent { Ok(()) } else { Err(self.failure()) }
    }

    /// Returns the logits after the ids on the first call, and after each appended token on the following
    /// calls.
    fn logits(&mut self) -> Result<Vec<f32>, ModelError> {
        self.logits.recv().map_err(|_| self.failure())
    }

    fn failure(&mut self) -> ModelError {
        let reason = (self.failure_reason)();
        failed(reason.unwrap_or_else(|| "the engine ended a sequence without a reason".to_owned()))
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.tokens = None;
        while self.logits.recv().is_ok() {}
    }
}

//! The work of an engine for one request, estimated when it is sent and counted when its responses arrive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::client::UpstreamError;

/// The usual number of bytes of a token.
const TOKEN_BYTES: usize = 4;

/// Returns about how many tokens this many bytes of a request or a response have.
pub fn estimated_tokens(bytes: usize) -> u64 {
    bytes.div_ceil(TOKEN_BYTES) as u64
}

/// The work of an engine, as it reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineUsage {
    /// Number of requests.
    pub requests: u64,
    /// Tokens of the prompts of all requests.
    pub prompt_tokens: u64,
    /// The part of them that came from a cache.
    pub cached_tokens: u64,
    /// Tokens of all answers, reasoning included.
    pub completion_tokens: u64,
    /// The part of them that is reasoning.
    pub reasoning_tokens: u64,
}

impl EngineUsage {
    /// Adds the work of other requests.
    pub fn add(&mut self, other: Self) {
        self.combine(other, u64::saturating_add);
    }

    fn subtract(&mut self, other: Self) {
        self.combine(other, u64::saturating_sub);
    }

    fn combine(&mut self, other: Self, with: fn(u64, u64) -> u64) {
        let Self { requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens } = other;
        for (sum, part) in [
            (&mut self.requests, requests),
            (&mut self.prompt_tokens, prompt_tokens),
            (&mut self.cached_tokens, cached_tokens),
            (&mut self.completion_tokens, completion_tokens),
            (&mut self.reasoning_tokens, reasoning_tokens),
        ] {
            *sum = with(*sum, part);
        }
    }

    /// Tokens of prompts and answers.
    pub fn tokens(self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

/// Adds up the work for the jobs of one request, also of those that never end. Clones share the sum.
#[derive(Debug, Clone, Default)]
pub struct EngineMeter(Arc<Mutex<Sums>>);

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    reported: EngineUsage,
    /// The work of requests without a report.
    estimated: EngineUsage,
}

/// A request that is counted by an estimate as long as the engine has not reported its work: if it is
/// cancelled, it may have cost that much.
pub(crate) struct Charge {
    meter: EngineMeter,
    estimate: EngineUsage,
}

impl EngineMeter {
    /// Counts a request that is about to be sent.
    pub(crate) fn charge(&self, estimate: EngineUsage) -> Charge {
        self.lock().estimated.add(estimate);
        Charge { meter: self.clone(), estimate }
    }

    /// The work that the engine has reported.
    pub fn reported(&self) -> EngineUsage {
        self.lock().reported
    }

    /// The reported work, and estimates of the other.
    pub fn total(&self) -> EngineUsage {
        let Sums { mut reported, estimated } = *self.lock();
        reported.add(estimated);
        reported
    }

    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Charge {
    /// Replaces the estimate by the reported work. After an error, the estimate stays unless the engine has
    /// computed nothing.
    pub(crate) fn settle<T>(
        self,
        result: Result<(T, EngineUsage), UpstreamError>,
    ) -> Result<T, UpstreamError> {
        let mut sums = self.meter.lock();
        match result {
            Ok((response, usage)) => {
                sums.estimated.subtract(self.estimate);
                sums.reported.add(usage);
                Ok(response)
            }
            Err(error) => {
                if !error.may_have_computed() {
                    sums.estimated.subtract(self.estimate);
                }
                Err(error)
            }
        }
    }
}

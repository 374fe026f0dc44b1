//! The work of an engine for one request, counted as its responses arrive.

use std::sync::{Arc, Mutex, PoisonError};

/// The work of an engine, as it reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineUsage {
    /// Number of responses.
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
        let Self { requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens } = other;
        for (sum, part) in [
            (&mut self.requests, requests),
            (&mut self.prompt_tokens, prompt_tokens),
            (&mut self.cached_tokens, cached_tokens),
            (&mut self.completion_tokens, completion_tokens),
            (&mut self.reasoning_tokens, reasoning_tokens),
        ] {
            *sum = sum.saturating_add(part);
        }
    }

    /// Tokens of prompts and answers.
    pub fn tokens(self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

/// Adds up the work for the jobs of one request, also of those that never end. Clones share the sum.
#[derive(Debug, Clone, Default)]
pub struct EngineMeter(Arc<Mutex<EngineUsage>>);

impl EngineMeter {
    pub(crate) fn add(&self, usage: EngineUsage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(usage);
    }

    pub fn total(&self) -> EngineUsage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

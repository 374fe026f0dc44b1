//! Whole answers of another engine, which were sampled because it reports no probabilities.

use crate::samples::{NumberSamples, OptionSamples};

/// The answers that a distribution was estimated from, and what they cost. `S`: [`NumberSamples`] or
/// [`OptionSamples`].
#[derive(Debug, Clone, PartialEq)]
pub struct SampledAnswers<S> {
    pub samples: S,
    pub usage: EngineUsage,
}

pub type NumberAnswers = SampledAnswers<NumberSamples>;
pub type OptionAnswers = SampledAnswers<OptionSamples>;

/// The work of another engine, as it reports it.
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
}

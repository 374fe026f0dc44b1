//! Choosing the next token from logits: greedy or sampled, seeded per path.
//!
//! The order is vLLM's: the caller's changes of the logits (guide mask, banned ends, biases), penalties,
//! temperature, `min_p`, `top_k`, `top_p`. Reported log-probabilities come from the model itself, before all
//! of this.

mod draw;
mod penalties;

use std::borrow::Cow;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use crate::maximum::argmax;
pub(crate) use draw::drawn_candidates;

use penalties::Seen;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most probable token.
    pub temperature: f64,
    /// Sample only from the most probable tokens that together reach this mass, in (0, 1].
    pub top_p: f64,
    /// Sample only from this many of the most probable tokens; 0 takes all.
    pub top_k: usize,
    /// Sample only tokens that are at least this times as probable as the most probable one, in [0, 1].
    pub min_p: f64,
    /// Subtracted from the logit of every token that was generated before.
    pub presence_penalty: f64,
    /// Subtracted from a token's logit for each time that it was generated before.
    pub frequency_penalty: f64,
    /// Divides the positive logits, and multiplies the negative ones, of tokens in the prompt or generated
    /// before, as in CTRL (Keskar et al. 2019). 1 changes nothing.
    pub repetition_penalty: f64,
    /// The same seed gives the same text under any load.
    pub seed: u64,
}

impl SamplingParams {
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        seed: 0,
    };

    /// Samples from the model's own distribution.
    pub const PLAIN: Self = Self { temperature: 1.0, ..Self::GREEDY };
}

/// Chooses the tokens of one path.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: SamplingParams,
    rng: ChaCha8Rng,
    /// For penalties; `None` without any.
    seen: Option<Seen>,
}

impl Sampler {
    /// `path` gives each of several texts of one request its own stream of random numbers.
    pub fn new(sampling: SamplingParams, path: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        rng.set_stream(path);
        Self { sampling, rng, seen: Seen::of(&sampling) }
    }

    /// Sets the prompt, which `repetition_penalty` applies to as well.
    pub fn after_prompt(mut self, prompt: &[u32]) -> Self {
        if let Some(seen) = &mut self.seen {
            seen.prompt(prompt);
        }
        self
    }

    /// Returns whether it always takes the most probable token: no temperature, no penalties.
    pub fn takes_best(&self) -> bool {
        self.sampling.temperature <= 0.0 && self.seen.is_none()
    }

    /// Chooses a token, which counts as generated from now on. Ties go to the lowest id, and NaN is never
    /// chosen. `None` when no logit is above minus infinity.
    pub fn choose(&mut self, logits: &[f32]) -> Option<u32> {
        let id = self.draw(logits)?;
        self.generated(id);
        Some(id)
    }

    /// Like [`Sampler::choose`], but the token does not count as generated.
    pub(crate) fn draw(&mut self, logits: &[f32]) -> Option<u32> {
        let logits = match &self.seen {
            None => Cow::Borrowed(logits),
            Some(seen) => Cow::Owned(seen.penalised(logits, &self.sampling)),
        };
        let best = argmax(&logits);
        let max = logits.get(best).copied().filter(|&max| max > f32::NEG_INFINITY)?;
        let id = if self.sampling.temperature <= 0.0 {
            best
        } else {
            draw::draw(&logits, max, &self.sampling, self.rng.random()).unwrap_or(best)
        };
        Some(id as u32)
    }

    /// Counts a token as generated.
    pub(crate) fn generated(&mut self, id: u32) {
        if let Some(seen) = &mut self.seen {
            seen.generated(id);
        }
    }
}

#[cfg(test)]
mod tests;

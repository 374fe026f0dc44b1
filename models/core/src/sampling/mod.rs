//! Choosing the next token from logits: greedy or sampled, seeded per path.
//!
//! The order is vLLM's: the caller's changes of the logits (guide mask, banned ends, biases), penalties,
//! temperature, `min_p`, `top_k`, `top_p`. Reported log-probabilities come from the model itself, before all
//! of this.

mod draw;
mod guide;
mod penalties;

use std::borrow::Cow;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) use draw::drawn_candidates;
pub use guide::{Guide, GuideError, GuideState};

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
        } as u32;
        if let Some(seen) = &mut self.seen {
            seen.generated(id);
        }
        Some(id)
    }
}

/// Returns the index of the largest value. Ties go to the lowest index. Returns 0 if no value exceeds `-inf`.
pub fn argmax(values: &[f32]) -> usize {
    /// Number of values whose maximum is computed before its index is searched.
    const BLOCK: usize = 256;
    let mut best = (0, f32::NEG_INFINITY);
    for (block, values) in values.chunks(BLOCK).enumerate() {
        let largest = largest(values);
        if largest > best.1 {
            best = (block, largest);
        }
    }
    let first = best.0 * BLOCK;
    let is_best = |&value: &f32| best.1 > f32::NEG_INFINITY && value >= best.1;
    values.iter().skip(first).position(is_best).map_or(0, |index| first + index)
}

/// The largest value that is not NaN; without branches, so that the loop is vectorised.
pub(crate) fn largest(values: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for values in values.chunks(LANES) {
        for (lane, &value) in lanes.iter_mut().zip(values) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests;

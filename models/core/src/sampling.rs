//! Choosing the next token from logits: greedy, or sampled with temperature and nucleus, seeded per path.
//!
//! Not here: log-probabilities that are reported (`decoding`), which are those of the model itself.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the most probable token; otherwise logits are divided by it.
    pub temperature: f64,
    /// Sample only from the most probable tokens that together reach this mass, in (0, 1].
    pub top_p: f64,
    /// Same seed, same text, whatever else the engine is doing.
    pub seed: u64,
}

impl Sampling {
    /// Always the most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };
}

/// The state of choosing tokens along one path.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// `path` gives each of several texts of one request its own stream of random numbers.
    pub fn new(sampling: Sampling, path: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        rng.set_stream(path);
        Self { sampling, rng }
    }

    /// The index chosen from `logits`, which must not be empty. Of equal logits the lowest index wins.
    ///
    /// NaN is never chosen while any other number is there.
    pub fn choose(&mut self, logits: &[f32]) -> usize {
        let best = argmax(logits);
        if self.sampling.temperature <= 0.0 {
            return best;
        }
        let weights = self.weights(logits, logits[best]);
        let total: f64 = weights.iter().map(|&(_, weight)| weight).sum();
        let mut left = self.rng.random::<f64>() * total;
        for &(index, weight) in &weights {
            left -= weight;
            if left < 0.0 {
                return index;
            }
        }
        best
    }

    /// Unnormalised weights of the tokens that may be drawn, most probable first when a nucleus is cut.
    fn weights(&self, logits: &[f32], max: f32) -> Vec<(usize, f64)> {
        let weigh = |logit: f32| (f64::from(logit - max) / self.sampling.temperature).exp();
        let mut weights: Vec<(usize, f64)> = logits
            .iter()
            .map(|&logit| weigh(logit))
            .enumerate()
            .filter(|&(_, weight)| weight > 0.0)
            .collect();
        if self.sampling.top_p >= 1.0 {
            return weights;
        }
        weights.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let nucleus = self.sampling.top_p * weights.iter().map(|&(_, weight)| weight).sum::<f64>();
        let mut mass = 0.0;
        let kept = weights.iter().position(|&(_, weight)| {
            mass += weight;
            mass >= nucleus
        });
        weights.truncate(kept.map_or(weights.len(), |last| last + 1));
        weights
    }
}

/// Index of the largest value; the first of equals; 0 when nothing compares (all NaN).
pub fn argmax(values: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, &value) in values.iter().enumerate() {
        if value > best.1 {
            best = (index, value);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sampling: Sampling, path: u64, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling, path);
        (0..2000).map(|_| sampler.choose(logits)).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_equal_maxima_and_never_a_nan() {
        let mut greedy = Sampler::new(Sampling::GREEDY, 0);
        assert_eq!(greedy.choose(&[1.0, 3.0, 3.0, f32::NAN]), 1);
        assert_eq!(greedy.choose(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), 0);
    }

    #[test]
    fn frequencies_follow_the_softmax_at_the_given_temperature() {
        let logits = [0.0, 2.0_f32.ln(), f32::NEG_INFINITY];
        for (temperature, share) in [(1.0, 2.0 / 3.0), (0.5, 4.0 / 5.0)] {
            let drawn = draws(Sampling { temperature, top_p: 1.0, seed: 7 }, 0, &logits);
            let ones = drawn.iter().filter(|&&index| index == 1).count() as f64 / drawn.len() as f64;
            assert!((ones - share).abs() < 0.04, "temperature {temperature}: {ones} instead of {share}");
            assert!(!drawn.contains(&2), "a token of no probability was drawn");
        }
    }

    #[test]
    fn a_nucleus_keeps_the_fewest_tokens_that_reach_its_mass() {
        let logits = [0.1_f32.ln(), 0.6_f32.ln(), 0.3_f32.ln()];
        for (top_p, kept) in [(0.5, vec![1]), (0.7, vec![1, 2]), (0.95, vec![0, 1, 2]), (1.0, vec![0, 1, 2])]
        {
            let mut drawn = draws(Sampling { temperature: 1.0, top_p, seed: 1 }, 0, &logits);
            drawn.sort_unstable();
            drawn.dedup();
            assert_eq!(drawn, kept, "top_p {top_p}");
        }
    }

    #[test]
    fn the_same_seed_repeats_itself_and_paths_differ() {
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, seed: 42 };
        let logits = [0.0; 50];
        assert_eq!(draws(sampling, 0, &logits), draws(sampling, 0, &logits));
        assert_ne!(draws(sampling, 0, &logits), draws(sampling, 1, &logits));
        assert_ne!(draws(sampling, 0, &logits), draws(Sampling { seed: 43, ..sampling }, 0, &logits));
    }
}

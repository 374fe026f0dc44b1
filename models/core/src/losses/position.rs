//! One row of logits as losses read it: its softmax over the vocabulary, and over the number tokens alone.
//!
//! In `f64` throughout, unlike [`crate::numbers::Softmax`]: a loss may be the logarithm of nearly 1, or the square of a
//! small difference.

use super::tokens::NumberTokens;
use super::{LossError, Smoothing};

/// What a model expects at one position.
#[derive(Debug, Clone)]
pub struct Position<'a> {
    logits: &'a [f32],
    tokens: &'a NumberTokens,
    /// The largest logit, and the logarithm of the sum of all exponentials above it.
    normaliser: (f64, f64),
    /// Softmax over the number tokens alone; empty where none of them is possible.
    shares: Vec<f64>,
    mass: f64,
}

impl<'a> Position<'a> {
    /// Reads a row of logits, one for each id of the model's output layer. Number tokens beyond it have no probability.
    ///
    /// # Errors
    /// When the row has no softmax: it is empty, holds a NaN or `+inf`, or nothing but `-inf`.
    pub fn new(logits: &'a [f32], tokens: &'a NumberTokens) -> Result<Self, LossError> {
        let all = || logits.iter().map(|&logit| f64::from(logit));
        let normaliser = normaliser(all()).ok_or(LossError::NotADistribution)?;
        let row = |id: u32| logits.get(id as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit));
        let numbers = || tokens.all().iter().map(|token| row(token.id));
        let (shares, mass) = match self::normaliser(numbers()) {
            None => (Vec::new(), 0.0),
            Some((max, log_sum)) => {
                let shares = numbers().map(|logit| (logit - max - log_sum).exp()).collect();
                (shares, (max - normaliser.0 + log_sum - normaliser.1).exp().min(1.0))
            }
        };
        Ok(Self { logits, tokens, normaliser, shares, mass })
    }

    /// Natural logarithm of the probability of an id over the whole vocabulary; `-inf` for ids beyond the row.
    pub fn log_probability(&self, id: u32) -> f64 {
        let logit = self.logits.get(id as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit));
        (logit - self.normaliser.0 - self.normaliser.1).min(0.0)
    }

    /// Cross entropy of a label; infinite where a token of its target has no probability.
    ///
    /// Where the label is a number token, its target is spread by `smoothing`; probabilities are those over the whole
    /// vocabulary. (The paper's `GaussianLabelSmoother` raises an error where a batch has no number token at all.)
    pub fn cross_entropy(&self, label: u32, smoothing: Smoothing) -> f64 {
        let Some(index) = self.tokens.index(label).filter(|_| smoothing != Smoothing::NONE) else {
            return -self.log_probability(label);
        };
        let target = smoothing.target(self.tokens, index);
        let terms = self.tokens.all().iter().zip(target).filter(|(_, share)| *share > 0.0);
        terms.map(|(token, share)| -share * self.log_probability(token.id)).sum()
    }

    /// Sum over the number tokens of renormalised probability times value, ntloss's `predict_numbers`. `None` where no
    /// number token has any probability (there the original is NaN).
    pub fn expectation(&self) -> Option<f64> {
        let terms = self.tokens.all().iter().zip(&self.shares).map(|(token, share)| token.value * share);
        (!self.shares.is_empty()).then(|| terms.sum())
    }

    /// Probability of all number tokens together over the whole vocabulary, `nt_mass` of ntloss.
    pub fn number_mass(&self) -> f64 {
        self.mass
    }

    pub(super) fn tokens(&self) -> &'a NumberTokens {
        self.tokens
    }

    /// Softmax over the number tokens alone, by id; `None` where none of them is possible.
    pub(super) fn shares(&self) -> Option<&[f64]> {
        (!self.shares.is_empty()).then_some(&self.shares)
    }
}

/// The largest logit and the logarithm of the sum of `exp(logit - max)`; `None` where there is no softmax.
fn normaliser(logits: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let max = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.map(|logit| (logit - max).exp()).sum();
    (max.is_finite() && sum.is_finite()).then(|| (max, sum.ln()))
}

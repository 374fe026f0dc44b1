//! One row of logits for losses: its softmax over the vocabulary, and its softmax over the number tokens
//! alone.
//!
//! Everything is computed in `f64`, unlike in [`crate::numbers::Softmax`]: a loss may be the logarithm of
//! nearly 1, or the square of a small difference.

use super::tokens::NumberTokens;

/// The distribution of a model at one position.
#[derive(Debug, Clone)]
pub struct Position<'a> {
    logits: &'a [f32],
    tokens: &'a NumberTokens,
    normaliser: Normaliser,
    /// Softmax over the number tokens alone. Empty if none of them has any probability.
    shares: Vec<f64>,
    mass: f64,
}

/// The denominator of a softmax: `exp(max + log_sum)`.
#[derive(Debug, Clone, Copy)]
struct Normaliser {
    /// The largest logit.
    max: f64,
    /// `ln(sum(exp(logit - max)))`.
    log_sum: f64,
}

impl Normaliser {
    /// Returns `None` if the row has no softmax.
    fn of(logits: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let max = logits.clone().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.map(|logit| (logit - max).exp()).sum();
        (max.is_finite() && sum.is_finite()).then(|| Self { max, log_sum: sum.ln() })
    }
}

impl<'a> Position<'a> {
    /// Reads a row of logits, one for each id of the output layer. Number tokens beyond it have no
    /// probability.
    ///
    /// Returns `None` if the row has no softmax, because it is empty, has a NaN or `+inf`, or has only
    /// `-inf`.
    pub fn new(logits: &'a [f32], tokens: &'a NumberTokens) -> Option<Self> {
        let whole = Normaliser::of(logits.iter().map(|&logit| f64::from(logit)))?;
        let row = |id: u32| logits.get(id as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit));
        let numbers = || tokens.all().iter().map(|token| row(token.id));
        let (shares, mass) = match Normaliser::of(numbers()) {
            None => (Vec::new(), 0.0),
            Some(own) => {
                let shares = numbers().map(|logit| (logit - own.max - own.log_sum).exp()).collect();
                (shares, (own.max - whole.max + own.log_sum - whole.log_sum).exp().min(1.0))
            }
        };
        Some(Self { logits, tokens, normaliser: whole, shares, mass })
    }

    /// Natural logarithm of the probability of an id over the whole vocabulary; `-inf` for ids beyond the
    /// row.
    pub fn log_probability(&self, id: u32) -> f64 {
        let logit = self.logits.get(id as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit));
        (logit - self.normaliser.max - self.normaliser.log_sum).min(0.0)
    }

    /// Sum over the number tokens of renormalised probability times value, ntloss's `predict_numbers`. `None`
    /// if no number token has any probability (ntloss returns NaN).
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

    /// Returns the softmax over the number tokens alone, sorted by id, or `None` if none of them has any
    /// probability.
    pub(super) fn shares(&self) -> Option<&[f64]> {
        (!self.shares.is_empty()).then_some(&self.shares)
    }
}

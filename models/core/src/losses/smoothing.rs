//! Gaussian label smoothing: a target that gives numbers near the label a share, as the paper's `GaussianLabelSmoother`.

use super::LossError;
use super::tokens::NumberTokens;

/// Keeps the original's targets from being divided by 0; part of their definition.
const EPSILON: f64 = 1e-8;

/// How far a label that is a number spreads over the other number tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Smoothing {
    sigma: f64,
}

impl Smoothing {
    /// All of it on the label.
    pub const NONE: Self = Self { sigma: 0.0 };

    /// A Gaussian of standard deviation `sigma` in units of value; 0 is [`Smoothing::NONE`].
    ///
    /// # Errors
    /// When `sigma` is negative or not finite.
    pub fn new(sigma: f64) -> Result<Self, LossError> {
        if sigma.is_finite() && sigma >= 0.0 { Ok(Self { sigma }) } else { Err(LossError::Sigma(sigma)) }
    }

    /// The share of each number token where the label is the `label`-th of them: proportional to
    /// `exp(-((value - y) / sigma)^2 / 2)`. Shares of a Gaussian add up to a little less than 1, as in the original.
    pub(super) fn target(self, tokens: &NumberTokens, label: usize) -> Vec<f64> {
        if self.sigma <= 0.0 {
            return (0..tokens.all().len()).map(|index| f64::from(u8::from(index == label))).collect();
        }
        let y = tokens.all()[label].value;
        let weight = |value: f64| (-0.5 * ((value - y) / self.sigma).powi(2)).exp();
        let weights: Vec<f64> = tokens.all().iter().map(|token| weight(token.value)).collect();
        let total = weights.iter().sum::<f64>() + EPSILON;
        weights.into_iter().map(|weight| weight / total).collect()
    }
}

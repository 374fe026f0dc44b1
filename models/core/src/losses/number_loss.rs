//! Number Token Losses at one position: how far the number tokens' distribution is from the label's value.
//!
//! `q` is the softmax over the number tokens alone, `v` their values, `y` the value of the label. A position whose label
//! is no number token has no loss; padding is no position at all.

use super::position::Position;
use super::tokens::NumberTokens;
use super::{LossError, Smoothing};

/// How much more than the farthest number `reweigh` makes text cost.
const TEXT_COST: f64 = 1.01;

/// A Number Token Loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberLoss {
    /// Which one.
    pub kind: NumberLossKind,
    /// As in ntloss: `loss * m + 1.01 * max * (1 - m)`, where `m` is the mass of the number tokens and `max` the largest
    /// loss that two number tokens can have. Not part of the paper, whose losses do not see mass on text.
    pub reweigh: bool,
}

/// The kinds of Number Token Loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumberLossKind {
    /// NTL-MSE: `(sum q v - y)^2`.
    Mse,
    /// NTL-MAE: `|sum q v - y|`.
    Mae,
    /// NTL-Huber: half the square of the error up to 1, the error less one half beyond.
    Huber,
    /// NTL-WAS: `sum q |v - y|`, the Wasserstein distance to a label that is one value.
    Was,
    /// NTL-WAS of ntloss with a `squash_factor`.
    SquashedWas(Squash),
    /// NTL-WAS-CDF: `sum over ranks of |CDF of q - CDF of the target|`. A distance in ranks of tokens sorted by value, not in
    /// values: the same as [`NumberLossKind::Was`] for ten digits only. Tokens of one value are ranked by id
    /// ([`NumberTokens::ranked_by`]). `reweigh`, which the original does not have here, takes the number of tokens less one
    /// as `max`.
    WasCdf(Smoothing),
}

/// How many times worse than the nearest wrong number the farthest is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Squash(f64);

impl Squash {
    /// A factor above 1.
    ///
    /// # Errors
    /// When it is at most 1 or not finite.
    pub fn new(factor: f64) -> Result<Self, LossError> {
        if factor.is_finite() && factor > 1.0 {
            Ok(Self(factor))
        } else {
            Err(LossError::SquashFactor(factor))
        }
    }

    /// Maps the smallest distance to 1 and the largest to the factor, linearly, and 0 to 0. Where all distances are the same
    /// (two values) it is 1; there the original divides by 0.
    fn distance(self, distance: f64, (gap, span): (f64, f64)) -> f64 {
        if distance <= 0.0 {
            0.0
        } else if span > gap {
            1.0 + (distance - gap) * (self.0 - 1.0) / (span - gap)
        } else {
            1.0
        }
    }
}

impl NumberLoss {
    /// A loss as the paper defines it.
    pub fn of(kind: NumberLossKind) -> Self {
        Self { kind, reweigh: false }
    }

    /// The loss of `label` at a position. `None` where the label is no number token.
    ///
    /// Where no number token has any probability, so that there is no `q` (and NaN in the originals), it is the largest loss
    /// that two number tokens can have.
    pub fn at(&self, position: &Position<'_>, label: u32) -> Option<f64> {
        let tokens = position.tokens();
        let label = tokens.index(label)?;
        let loss = match position.shares() {
            Some(shares) => self.kind.distance(tokens, shares, label),
            None => self.kind.max(tokens),
        };
        if !self.reweigh {
            return Some(loss);
        }
        let mass = position.number_mass();
        Some(loss * mass + TEXT_COST * self.kind.max(tokens) * (1.0 - mass))
    }
}

impl NumberLossKind {
    fn distance(self, tokens: &NumberTokens, shares: &[f64], label: usize) -> f64 {
        let y = tokens.all()[label].value;
        let mean = |of: &dyn Fn(f64) -> f64| -> f64 {
            tokens.all().iter().zip(shares).map(|(token, share)| share * of(token.value)).sum()
        };
        match self {
            // The difference under the sum: exact where nearly all is on the label.
            Self::Mse | Self::Mae | Self::Huber => self.of_error(mean(&|value| value - y)),
            Self::Was => mean(&|value| (value - y).abs()),
            Self::SquashedWas(squash) => {
                let ends = (tokens.gap(), tokens.span());
                mean(&|value| squash.distance((value - y).abs(), ends))
            }
            Self::WasCdf(smoothing) => rank_distance(tokens, shares, &smoothing.target(tokens, label)),
        }
    }

    /// The largest loss that two number tokens can have.
    fn max(self, tokens: &NumberTokens) -> f64 {
        match self {
            Self::Mse | Self::Mae | Self::Huber => self.of_error(tokens.span()),
            Self::Was => tokens.span(),
            Self::SquashedWas(squash) => squash.distance(tokens.span(), (tokens.gap(), tokens.span())),
            Self::WasCdf(_) => tokens.all().len().saturating_sub(1) as f64,
        }
    }

    /// What an error of the expectation costs.
    fn of_error(self, error: f64) -> f64 {
        let size = error.abs();
        match self {
            Self::Mse => error * error,
            Self::Huber if size <= 1.0 => 0.5 * error * error,
            Self::Huber => size - 0.5,
            _ => size,
        }
    }
}

/// Sum over ranks of the difference between two cumulative distributions.
fn rank_distance(tokens: &NumberTokens, shares: &[f64], target: &[f64]) -> f64 {
    let mut steps = vec![0.0; tokens.all().len()];
    for ((token, share), target) in tokens.all().iter().zip(shares).zip(target) {
        steps[token.rank] += share - target;
    }
    let cumulative = steps.iter().scan(0.0, |sum, step| {
        *sum += step;
        Some(f64::abs(*sum))
    });
    cumulative.sum()
}

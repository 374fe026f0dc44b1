//! Number Token Losses at one position: how far the number tokens' distribution is from the label's value.
//!
//! `q` is the softmax over the number tokens alone, `v` their values, `y` the value of the label. A position
//! whose label is not a number token has no loss.

use super::position::Position;
use super::tokens::NumberTokens;

/// Factor by which text costs more than the farthest number with `reweigh`.
pub(super) const TEXT_COST: f64 = 1.01;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberLoss {
    pub kind: NumberLossKind,
    /// Whether to reweigh like ntloss: `loss * m + 1.01 * max * (1 - m)`. `m` is the mass of the number
    /// tokens, and `max` is the largest loss that two number tokens can have. The paper's losses ignore mass
    /// on text.
    pub reweigh: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumberLossKind {
    /// NTL-MSE: `(sum q v - y)^2`.
    Mse,
    /// NTL-MAE: `|sum q v - y|`.
    Mae,
    /// NTL-Huber: with `e = |sum q v - y|`, `e^2 / 2` up to 1 and `e - 1/2` beyond.
    Huber,
    /// NTL-WAS: `sum q |v - y|`, the Wasserstein distance to a label that is one value.
    Was,
    /// NTL-WAS with ntloss's `squash_factor`, which is above 1: the largest distance of two number tokens
    /// counts as this factor, the smallest one that is not 0 as 1, and those between by a straight line.
    SquashedWas(f64),
    /// NTL-WAS-CDF: `sum over ranks of |CDF of q - CDF of the label|`. A distance in ranks of tokens sorted
    /// by value, not in values: equal to [`NumberLossKind::Was`] only for ten digits. Tokens of one value are
    /// ranked by id ([`NumberTokens::ranked_by`]). For `reweigh`, which the reference implementation lacks
    /// here, `max` is the number of tokens less one.
    WasCdf,
}

impl NumberLoss {
    /// A loss as the paper defines it.
    pub fn of(kind: NumberLossKind) -> Self {
        Self { kind, reweigh: false }
    }

    /// Returns the loss of `label` at a position, or `None` if the label is not a number token.
    ///
    /// If no number token has any probability, `q` does not exist (the reference implementations return NaN).
    /// The loss is then the largest one that two number tokens can have.
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

/// Returns the expectation of a function of the number tokens' values.
fn expectation(tokens: &NumberTokens, shares: &[f64], of: impl Fn(f64) -> f64) -> f64 {
    tokens.all().iter().zip(shares).map(|(token, share)| share * of(token.value)).sum()
}

impl NumberLossKind {
    fn distance(self, tokens: &NumberTokens, shares: &[f64], label: usize) -> f64 {
        let y = tokens.all()[label].value;
        match self {
            // Summing differences is exact even if nearly all probability is on the label.
            Self::Mse | Self::Mae | Self::Huber => {
                self.of_error(expectation(tokens, shares, |value| value - y))
            }
            Self::Was => expectation(tokens, shares, |value| (value - y).abs()),
            Self::SquashedWas(factor) => {
                expectation(tokens, shares, |value| squashed((value - y).abs(), tokens, factor))
            }
            Self::WasCdf => rank_distance(tokens, shares, label),
        }
    }

    /// The largest loss that two number tokens can have.
    fn max(self, tokens: &NumberTokens) -> f64 {
        match self {
            Self::Mse | Self::Mae | Self::Huber => self.of_error(tokens.span()),
            Self::Was => tokens.span(),
            Self::SquashedWas(factor) => squashed(tokens.span(), tokens, factor),
            Self::WasCdf => tokens.all().len().saturating_sub(1) as f64,
        }
    }

    /// Returns the loss of an error of the expectation.
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

/// Returns what a distance of two number tokens counts as.
fn squashed(distance: f64, tokens: &NumberTokens, factor: f64) -> f64 {
    let (least, most) = (tokens.gap(), tokens.span());
    if distance <= 0.0 {
        0.0
    } else if most > least {
        1.0 + (distance - least) * (factor - 1.0) / (most - least)
    } else {
        // All distances are the same, for which ntloss divides by 0.
        1.0
    }
}

/// Sum over ranks of the difference between the cumulative distributions of `shares` and of the label.
fn rank_distance(tokens: &NumberTokens, shares: &[f64], label: usize) -> f64 {
    let mut steps = vec![0.0; tokens.all().len()];
    for (index, (token, share)) in tokens.all().iter().zip(shares).enumerate() {
        steps[token.rank] += share - f64::from(u8::from(index == label));
    }
    let cumulative = steps.iter().scan(0.0, |sum, step| {
        *sum += step;
        Some(f64::abs(*sum))
    });
    cumulative.sum()
}

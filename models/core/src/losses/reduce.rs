//! Many losses as one: mean, sum, or none at all, with a weight for each position.

use super::LossError;

/// The least sum of weights that a mean is divided by; ntloss's.
const WEIGHTS_MIN: f64 = f32::EPSILON as f64;

/// What becomes of the losses of many positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Sum of weighted losses over the sum of weights.
    Mean,
    /// Sum of weighted losses.
    Sum,
    /// One weighted loss a position.
    None,
}

/// Losses after their [`Reduction`].
#[derive(Debug, Clone, PartialEq)]
pub enum ReducedLoss {
    /// Of all positions together.
    All(f64),
    /// Of each position.
    Each(Vec<f64>),
}

/// Reduces the losses of positions; `None` is a position that does not count, such as one whose label is padding or, for a
/// Number Token Loss, no number.
///
/// Without a position that counts, mean and sum are 0, as in ntloss. (The mean of the paper's code is NaN then, and spoils
/// a training step on a batch without numbers.)
pub fn reduce(losses: &[Option<f64>], reduction: Reduction) -> ReducedLoss {
    reduced(losses, |_| 1.0, reduction)
}

/// The same with a weight for each position, ntloss's `loss_weights`; with all weights 0, mean and sum are 0.
///
/// # Errors
/// When there is not one weight a position, or one is negative or not finite.
pub fn reduce_weighted(
    losses: &[Option<f64>],
    weights: &[f64],
    reduction: Reduction,
) -> Result<ReducedLoss, LossError> {
    check(weights, losses.len())?;
    Ok(reduced(losses, |at| weights[at], reduction))
}

fn reduced(losses: &[Option<f64>], weight: impl Fn(usize) -> f64, reduction: Reduction) -> ReducedLoss {
    let counted = || losses.iter().enumerate().filter_map(|(at, loss)| Some((weight(at), (*loss)?)));
    // A weight of 0 leaves out even an infinite loss.
    let weighted = |(weight, loss): (f64, f64)| if weight > 0.0 { weight * loss } else { 0.0 };
    // The sum of nothing is -0.
    let sum = || counted().map(weighted).sum::<f64>() + 0.0;
    let weights = || counted().map(|(weight, _)| weight).sum::<f64>();
    let each = |(at, loss): (usize, &Option<f64>)| loss.map_or(0.0, |loss| weighted((weight(at), loss)));
    match reduction {
        Reduction::Mean => ReducedLoss::All(sum() / weights().max(WEIGHTS_MIN)),
        Reduction::Sum => ReducedLoss::All(sum()),
        Reduction::None => ReducedLoss::Each(losses.iter().enumerate().map(each).collect()),
    }
}

fn check(weights: &[f64], losses: usize) -> Result<(), LossError> {
    if weights.len() != losses {
        return Err(LossError::WeightCount { weights: weights.len(), losses });
    }
    match weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
        Some(&weight) => Err(LossError::Weight(weight)),
        None => Ok(()),
    }
}

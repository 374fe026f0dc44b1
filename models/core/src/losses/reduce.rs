//! Combines the losses of many positions.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Sum of losses over the number of positions that count.
    Mean,
    Sum,
    /// One loss a position.
    None,
}

/// Losses after their [`Reduction`].
#[derive(Debug, Clone, PartialEq)]
pub enum ReducedLoss {
    All(f64),
    /// One loss a position.
    Each(Vec<f64>),
}

/// Reduces the losses of positions. `None` marks a position that does not count, such as one whose label is
/// padding or, for a Number Token Loss, not a number.
///
/// Without a position that counts, mean and sum are 0, as in ntloss. (In the paper's code the mean is NaN,
/// which breaks a training step on a batch without numbers.)
pub fn reduce(losses: &[Option<f64>], reduction: Reduction) -> ReducedLoss {
    // The sum of nothing is -0.
    let sum = losses.iter().flatten().sum::<f64>() + 0.0;
    match reduction {
        Reduction::Mean => ReducedLoss::All(sum / losses.iter().flatten().count().max(1) as f64),
        Reduction::Sum => ReducedLoss::All(sum),
        Reduction::None => ReducedLoss::Each(losses.iter().map(|loss| loss.unwrap_or(0.0)).collect()),
    }
}

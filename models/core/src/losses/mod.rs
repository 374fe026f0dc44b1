//! What a target costs under a model: cross entropy and every Number Token Loss, on rows of logits.
//!
//! [`NumberTokens`] says which ids are numbers, [`Position`] reads one row of logits with them, [`NumberLoss`] is a loss at
//! such a position, [`NumberLevel`] one over whole numbers, [`reduce()`] makes one value of many. Everything is added up in
//! `f64`; nothing here is ever NaN. Sources: the paper "Regress, Don't Guess" (arXiv 2411.02083) with its code, and
//! ntloss 0.3.2. Where these give NaN, count padding or depend on the order of a sort, ours differ, and say so where they do.

mod level;
mod number_loss;
mod pieces;
mod position;
mod reduce;
mod smoothing;
mod tokens;

#[cfg(test)]
mod tests;

pub use level::{Digit, NumberLevel};
pub use number_loss::{NumberLoss, NumberLossKind, Squash};
pub use pieces::{NtlossVocabulary, PlacedDigit};
pub use position::Position;
pub use reduce::{ReducedLoss, Reduction, reduce, reduce_weighted};
pub use smoothing::Smoothing;
pub use tokens::NumberTokens;

/// An option or an input that no loss is defined for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// The row has no softmax.
    #[error("the model's logits are not finite")]
    NotADistribution,
    /// The width of a Gaussian.
    #[error("sigma must be 0 or more, not {0}")]
    Sigma(f64),
    /// How much worse the farthest number is than the nearest.
    #[error("squash_factor must be more than 1, not {0}")]
    SquashFactor(f64),
    /// A weight of a position.
    #[error("loss weights must be 0 or more, not {0}")]
    Weight(f64),
    /// Not one weight a position.
    #[error("{weights} loss weights for {losses} positions")]
    WeightCount {
        /// How many weights there are.
        weights: usize,
        /// How many positions there are.
        losses: usize,
    },
}

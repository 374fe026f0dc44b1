//! Losses of a target under a model: cross entropy and the Number Token Losses, computed from rows of logits.
//!
//! [`NumberTokens`] lists the ids that are numbers, [`Position`] reads one row of logits, [`NumberLoss`] is a
//! loss at a position, [`reduce()`] combines the losses of many. All sums are `f64`; no result is NaN.
//! Sources: the paper "Regress, Don't Guess" (arXiv 2411.02083) with its code, and ntloss 0.3.2.
//! `docs/losses.md` lists where results differ from these on purpose.

mod grid;
mod level;
mod number_loss;
mod placed_digit;
mod position;
mod reduce;
mod tokens;

#[cfg(test)]
mod tests;

pub use grid::{dist2, log_softmax, raft};
pub use level::level_losses;
pub use number_loss::{NumberLoss, NumberLossKind};
pub use placed_digit::PlacedDigit;
pub use position::{DigitScore, Position};
pub use reduce::{ReducedLoss, Reduction, reduce};
pub use tokens::NumberTokens;

//! Numbers: how they are spelled in tokens, how probable each is, and what to answer then.
//!
//! [`NumberGrammar`] says which token ids continue, end or leave a number; the tree in [`crate::decoding`] walks
//! it; [`Distribution`] holds what was found and computes estimates with rigorous [`bounds`](Interval).
//! [`parse`] reads numbers out of ordinary text; [`python`] reads those that are tokens.

mod bounds;
mod decimal;
mod distribution;
mod grammar;
pub mod parse;
mod piece;
pub mod python;
mod rules;
mod softmax;
mod state;

pub use bounds::Interval;
pub use decimal::Decimal;
pub use distribution::{Distribution, Estimation, Leaf, Mass, Objective};
pub(crate) use grammar::rising;
pub use grammar::{Closing, Effect, Expansion, NumberGrammar};
pub use piece::NumberPiece;
pub use rules::NumberRules;
pub use softmax::Softmax;
pub use state::{GrammarLimits, NumberState};

//! Numbers: how tokens spell them, how probable each is, and which estimate to return.
//!
//! [`NumberGrammar`] knows which token ids continue, end or leave a number; the searches in `decoding` walk
//! it; [`Distribution`] holds the numbers found, with estimates and rigorous [`bounds`](Interval). [`parse`]
//! reads numbers in ordinary text, [`python`] those that are tokens.

mod answer;
mod bounds;
mod conformal;
mod decimal;
mod distribution;
#[cfg(test)]
mod distribution_tests;
mod expansion;
mod grammar;
mod listed;
pub mod parse;
mod piece;
pub mod python;
mod rules;
mod sampled;
mod schema;
mod softmax;
mod state;
mod text_grammar;
mod token_notation;
mod token_state;
mod value;
mod values;

pub use answer::NumberReading;
pub(crate) use bounds::Extremes;
pub use conformal::{conformal_interval, conformal_offset, conformal_rank, conformity_score};
pub use decimal::Decimal;
pub use distribution::{
    Distribution, DrawnNumber, Estimation, Interval, Leaf, Mass, Objective, OpenPart, SpecialMass,
};
pub use expansion::{
    Child, ClosedNumber, Expansion, ListedPrefix, NumberState, Refused, RefusedEnd, TokenEffect, Unreported,
};
pub use grammar::NumberGrammar;
pub use listed::{ListedValues, TokenBytes};
pub use piece::NumberPiece;
pub use rules::{NumberRules, Terminator};
pub use sampled::SampledDistribution;
pub use schema::{AdmittedNumber, Multiples, NumberBound, NumberSet, SchemaNumbers};
pub use softmax::Softmax;
pub use state::{GrammarLimits, TextState};
pub(crate) use text_grammar::sorted_unique;
pub use token_notation::{ANSWER_TOKENS_MAX, NotationError, TokenFormat, TokenNotation};
pub(crate) use token_state::TokenState;
pub use value::{NumberValue, Scaled, SpecialValue};
pub use values::{NumberValues, Scale, ScaleError};

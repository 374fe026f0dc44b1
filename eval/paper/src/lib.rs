//! Decoding, length limits and figures of the NTL paper's evaluation code, with all its peculiarities.
//!
//! [`Protocol`] is the only way in which an evaluation uses them: before its requests for decoding, lengths
//! and labels, and after them for figures. [`Paper`] implements it. The package also has the text scores of
//! the paper's libraries, [`bleu`] and [`rouge`], which are not specific to the paper's protocol.

pub mod bleu;
mod evaluation;
pub mod figures;
mod labels;
pub mod ngrams;
pub mod numbers;
pub mod numpy;
mod paper;
mod porter;
mod protocol;
pub mod rouge;

use regex::Regex;

pub use self::paper::Paper;
pub use self::protocol::{
    Case, CaseAnswer, CaseLabel, Figure, IntervalSource, NumberPair, Protocol, Role, TextOverlap,
    WeightedFigure,
};

/// Number of items that the paper's trainer evaluates as one batch. Its length rule and its averages depend
/// on it.
const BATCH: usize = 64;

#[expect(clippy::expect_used, reason = "patterns are constants that tests run")]
fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

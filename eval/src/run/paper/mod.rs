//! Paper mode: figures as the NTL paper's evaluation code computes them.

pub mod figures;
pub mod numpy;
pub mod quirks;

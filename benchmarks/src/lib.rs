//! The measurements of `ntl-bench`, as a library for its binary and its criterion benchmarks.

pub mod decode;
pub mod load;
pub mod load_model;
pub mod numbers;
pub mod prefix;
pub mod quality;
pub mod random;
pub mod setup;
pub mod stats;
pub mod table;

//! The flags of a run and their meaning, by subject. The comment of a field is the help of its flag. `cli`
//! has the flags of single tasks and of other commands; everything else knows only the settings.

pub mod base_url;
pub mod decisions;
pub mod gates;
pub mod judge;
pub mod mode;
pub mod number;
mod run;
pub mod values;

pub use self::run::{OnExisting, OutputSettings, RunSettings, ServerSettings};

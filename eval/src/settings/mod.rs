//! The meaning of the flags of a run, by subject. `cli` reads the flags and makes these settings; everything
//! else knows only the settings.

pub mod base_url;
pub mod decisions;
pub mod gates;
pub mod judge;
pub mod mode;
pub mod number;
mod run;

pub use self::run::{OnExisting, OutputSettings, RunSettings, ServerSettings};

//! Options of a judge's figures, which do not affect its requests.

use std::path::PathBuf;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct JudgeSettings {
    /// The lowest score that passes, on the judge's scale.
    pub pass_from: Option<f64>,
    /// Width of the interval whose labels are to be counted, above 0.
    pub width: Option<f64>,
    /// Directory of an earlier run of the same judge.
    pub drift: Option<PathBuf>,
}

//! Options of a judge's figures, which do not affect its requests.

use std::path::PathBuf;

use super::values::{finite, positive};

#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct JudgeSettings {
    /// Also report the share of the items whose score is at least V, as the judge and as people see it.
    #[arg(long, value_name = "V", allow_hyphen_values = true, value_parser = finite, conflicts_with = "pairs")]
    pub pass_from: Option<f64>,
    /// Also report how many labels give the corrected mean score a 95% interval of this width.
    #[arg(long, value_name = "W", value_parser = positive)]
    pub width: Option<f64>,
    /// Directory of an earlier run of this judge: test whether it scores the same prompts differently now.
    #[arg(long, value_name = "DIR")]
    pub drift: Option<PathBuf>,
}

//! Flags of `ntl-eval calibrate`, and the settings that they mean.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ntl_api::CalibratedKind;

use super::flags::at_least_one;
use crate::calibrate::CalibrateSettings;

/// Makes a calibration file for `ntl-server --calibration` from the intervals and the true answers of a
/// finished run.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// Folder of a run in regress mode or of `decisions`, as `--out` wrote it.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Share of the intervals that may miss the truth, between 0 and 1: their coverage is 1 - ALPHA. The run
    /// must hold the quantiles ALPHA/2 and 1 - ALPHA/2 (every run has those for 0.1 and 0.5), or be made with
    /// `--interval`.
    #[arg(long, value_name = "ALPHA", default_value = "0.1", value_parser = alpha)]
    pub alpha: f64,
    /// The file to write. An existing file is an error without `--overwrite`.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    pub overwrite: bool,
    /// Number of items to calibrate on, drawn by `--seed`. The others are held out: coverage and width are
    /// measured on them. Default: half of the items.
    #[arg(long, value_name = "N", value_parser = at_least_one::<NonZeroUsize>)]
    pub items: Option<NonZeroUsize>,
    /// Type of questions to calibrate, in a run of `decisions`. Default: the only one.
    #[arg(long = "type", value_name = "TYPE", value_parser = kind())]
    pub kind: Option<CalibratedKind>,
    /// Seed of the draw.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl CalibrateArgs {
    pub fn settings(&self) -> CalibrateSettings {
        CalibrateSettings {
            run: self.run.clone(),
            alpha: self.alpha,
            out: self.out.clone(),
            overwrite: self.overwrite,
            items: self.items,
            kind: self.kind,
            seed: self.seed,
            json: self.json,
        }
    }
}

const EXAMPLES: &str = "\
Example:
  ntl-eval rjokes --endpoint http://127.0.0.1:8000 --mode regress --out results
  ntl-eval calibrate results --alpha 0.1 --out jokes.json
  ntl-server --model DIR --calibration jokes.json";

fn kind() -> impl TypedValueParser<Value = CalibratedKind> {
    PossibleValuesParser::new(["predicate", "choice", "score"]).map(|name| match name.as_str() {
        "predicate" => CalibratedKind::Predicate,
        "choice" => CalibratedKind::Choice,
        _ => CalibratedKind::Score,
    })
}

fn alpha(text: &str) -> Result<f64, String> {
    let share = text.trim().parse().ok().filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "expected a share between 0 and 1".to_owned())
}

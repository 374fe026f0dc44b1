//! Sums and differences of integers: DeepMind's `arithmetic__add_sub_multiple` (interpolate) and
//! `arithmetic__add_sub_multiple_longer` (extrapolate), as in Table 2 of the NTL paper.
//!
//! In: files in the paper's two-line format, or nothing, and then items are generated. Out: one suite per split.

use std::path::Path;

use serde_json::{Map, json};

use super::generate::{self, Split};
use super::{Entry, Origin, Suite, Traits, from_file};
use crate::data::place;
use crate::data::read::{Truth, pairs};
use crate::error::Error;
use crate::flags::Common;

/// Line of the task list.
pub const ENTRY: Entry = Entry {
    name: "arithmetic",
    about: "sums and differences of integers (DeepMind mathematics, add_sub_multiple and its longer form)",
    origin: Origin::Generated(|seed| {
        let file = |split: Split| {
            (format!("arithmetic_test_{}.txt", split.name()), generate::items(split, seed, GENERATED))
        };
        vec![file(Split::Interpolate), file(Split::Extrapolate)]
    }),
};

/// As many as DeepMind's test files hold.
const GENERATED: usize = 10_000;

/// Flags of the task. `--data`: a file with a question and its answer on alternating lines, or a folder that holds
/// `arithmetic_test_interpolate.txt` and `arithmetic_test_extrapolate.txt`. Default: 10,000 generated items.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which test set: 4 to 7 operands as in training, 10 to 12 operands, or one after the other.
    #[arg(long, value_enum, env = "NTL_EVAL_SPLIT", default_value = "both")]
    pub split: SplitChoice,
    /// Common flags.
    #[command(flatten)]
    pub common: Common,
}

/// `--split` as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SplitChoice {
    /// Like the training data.
    Interpolate,
    /// Beyond the training data.
    Extrapolate,
    /// Both, in a report each.
    Both,
}

impl SplitChoice {
    /// The splits that it stands for.
    pub fn splits(self) -> &'static [Split] {
        match self {
            Self::Interpolate => &[Split::Interpolate],
            Self::Extrapolate => &[Split::Extrapolate],
            Self::Both => &[Split::Interpolate, Split::Extrapolate],
        }
    }
}

/// The error for one file with `--split both`.
pub(super) fn one_file(path: &Path) -> Error {
    Error::Usage(format!(
        "{} is one file: say which split it is with --split interpolate or --split extrapolate, \
         or give a folder that holds both",
        path.display()
    ))
}

/// The suites that the flags ask for.
///
/// # Errors
/// A single file with `--split both`, or data that cannot be used.
pub fn suites(args: &Args) -> Result<Vec<Suite>, Error> {
    if let (SplitChoice::Both, Some(path)) = (args.split, &args.common.data)
        && path.is_file()
    {
        return Err(one_file(path));
    }
    args.split.splits().iter().map(|&split| suite(&args.common, split)).collect()
}

fn suite(common: &Common, split: Split) -> Result<Suite, Error> {
    let limit = common.limit.map(usize::from);
    let (items, setting) = match &common.data {
        Some(path) => {
            let name = format!("arithmetic_test_{}.txt", split.name());
            let file = place::find(ENTRY.name, &[&name], Some(path))?;
            let mut items = pairs(&file, Truth::Number)?;
            items.truncate(limit.unwrap_or(usize::MAX));
            (items, from_file(&file))
        }
        None => {
            let items = generate::items(split, common.seed, limit.unwrap_or(GENERATED));
            (items, ("data".to_owned(), json!("generated")))
        }
    };
    Ok(Suite {
        task: ENTRY.name,
        split: split.name().to_owned(),
        items,
        settings: Map::from_iter([setting]),
        traits: Traits::default(),
    })
}

//! Sums and differences of integers: DeepMind's `arithmetic__add_sub_multiple` (interpolate) and
//! `arithmetic__add_sub_multiple_longer` (extrapolate), as in Table 2 of the NTL paper.
//!
//! In: files in the paper's two-line format, or nothing, and then items are generated. Out: one suite per split.

use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::generate::{self, Split};
use super::{Entry, Suite};
use crate::data::{Item, read_pairs};
use crate::error::Error;
use crate::flags::Common;

/// Line of the task list.
pub const ENTRY: Entry = Entry {
    name: "arithmetic",
    about: "sums and differences of integers (DeepMind mathematics, add_sub_multiple and its longer form)",
};

/// As many as DeepMind's test files hold.
const GENERATED: usize = 10_000;

/// Flags of the task.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which test set: 4 to 7 operands as in training, 10 to 12 operands, or one after the other.
    #[arg(long, value_enum, env = "NTL_EVAL_SPLIT", default_value = "both")]
    pub split: SplitChoice,
    /// File with a question and its answer on alternating lines, or a folder that holds
    /// arithmetic_test_interpolate.txt and arithmetic_test_extrapolate.txt. Default: 10,000 generated items.
    #[arg(long, value_name = "PATH", env = "NTL_EVAL_DATA")]
    pub data: Option<PathBuf>,
    /// Common flags.
    #[command(flatten)]
    pub common: Common,
}

/// `--split` as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SplitChoice {
    /// Like the training data.
    Interpolate,
    /// Longer than the training data.
    Extrapolate,
    /// Both, in a report each.
    Both,
}

/// The suites that the flags ask for.
///
/// # Errors
/// A single file with `--split both`, or data that cannot be used.
pub fn suites(args: &Args) -> Result<Vec<Suite>, Error> {
    let splits: &[Split] = match args.split {
        SplitChoice::Interpolate => &[Split::Interpolate],
        SplitChoice::Extrapolate => &[Split::Extrapolate],
        SplitChoice::Both => &[Split::Interpolate, Split::Extrapolate],
    };
    if let (SplitChoice::Both, Some(path)) = (args.split, &args.data)
        && path.is_file()
    {
        return Err(Error::Usage(format!(
            "{} is one file: say which split it is with --split interpolate or --split extrapolate, \
             or give a folder that holds both",
            path.display()
        )));
    }
    splits.iter().map(|&split| suite(args, split)).collect()
}

fn suite(args: &Args, split: Split) -> Result<Suite, Error> {
    let file = args.data.as_deref().map(|path| split_file(path, split));
    let items = items(file.as_deref(), split, &args.common)?;
    let data = file.map_or(json!("generated"), |file| json!(file.display().to_string()));
    let settings = Map::from_iter([("data".to_owned(), data)]);
    Ok(Suite { task: ENTRY.name, split: split.name(), items, settings })
}

fn items(file: Option<&Path>, split: Split, common: &Common) -> Result<Vec<Item>, Error> {
    match file {
        Some(file) => Ok(read_pairs(file, common.limit.map_or(usize::MAX, usize::from))?),
        None => Ok(generate::items(split, common.seed, common.limit.map_or(GENERATED, usize::from))),
    }
}

fn split_file(path: &Path, split: Split) -> PathBuf {
    if path.is_dir() { path.join(format!("arithmetic_test_{}.txt", split.name())) } else { path.to_owned() }
}

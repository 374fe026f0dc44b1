//! Tasks that have an interpolate and an extrapolate split, each a file or generated: which of them a command line asks for.

use std::path::Path;

use serde_json::{Map, json};

use super::generate::Split;
use super::{Suite, Traits, from_file};
use crate::cli::flags::Common;
use crate::data::{DataError, Item, place};
use crate::error::Error;

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

/// The file of a split, in a folder of data.
pub fn file_name(task: &str, split: Split, extension: &str) -> String {
    format!("{task}_test_{}.{extension}", split.name())
}

/// A suite for each split: `read` from its file with `--data`, else `make` generates it.
///
/// # Errors
/// A single file with both splits, or data that cannot be used.
pub fn suites(
    (task, extension): (&'static str, &str),
    choice: SplitChoice,
    common: &Common,
    read: impl Fn(&Path) -> Result<Vec<Item>, DataError>,
    make: impl Fn(Split) -> Vec<Item>,
) -> Result<Vec<Suite>, Error> {
    if let (SplitChoice::Both, Some(path)) = (choice, &common.data)
        && path.is_file()
    {
        return Err(one_file(path));
    }
    let suite = |&split: &Split| {
        let (mut items, setting) = match &common.data {
            Some(path) => {
                let file = place::find(task, &[&file_name(task, split, extension)], Some(path))?;
                (read(&file)?, from_file(&file))
            }
            None => (make(split), ("data".to_owned(), json!("generated"))),
        };
        items.truncate(common.limit.map_or(usize::MAX, usize::from));
        let (split, settings) = (split.name().to_owned(), Map::from_iter([setting]));
        Ok(Suite { task, split, items, settings, traits: Traits::default() })
    };
    choice.splits().iter().map(suite).collect()
}

fn one_file(path: &Path) -> Error {
    Error::Usage(format!(
        "{} is one file: say which split it is with --split interpolate or --split extrapolate, \
         or give a folder that holds both",
        path.display()
    ))
}

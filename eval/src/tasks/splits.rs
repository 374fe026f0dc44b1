//! Tasks that have an interpolate and an extrapolate split, each a file or generated: which of them a command line asks for.

use std::path::Path;

use serde_json::{Map, json};

use super::generate::Split;
use super::{Suite, Traits, from_file};
use crate::cli::flags::Common;
use crate::cli::tasks::SplitChoice;
use crate::console::UsageError;
use crate::data::{DataError, Item, place};

pub(super) fn chosen(choice: SplitChoice) -> &'static [Split] {
    match choice {
        SplitChoice::Interpolate => &[Split::Interpolate],
        SplitChoice::Extrapolate => &[Split::Extrapolate],
        SplitChoice::Both => &[Split::Interpolate, Split::Extrapolate],
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
) -> anyhow::Result<Vec<Suite>> {
    if let (SplitChoice::Both, Some(path)) = (choice, &common.data)
        && path.is_file()
    {
        return Err(one_file(path).into());
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
    chosen(choice).iter().map(suite).collect()
}

fn one_file(path: &Path) -> UsageError {
    UsageError(format!(
        "{} is one file: say which split it is with --split interpolate or --split extrapolate, \
         or give a folder that holds both",
        path.display()
    ))
}

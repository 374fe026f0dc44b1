//! Suites of tasks that have an interpolate and an extrapolate split, each read from a file or generated.

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

pub fn file_name(task: &str, split: Split, extension: &str) -> String {
    format!("{task}_test_{}.{extension}", split.name())
}

/// Suites `read` from the files in `--data`, or else from `generate`.
pub fn suites(
    task: &'static str,
    extension: &str,
    choice: SplitChoice,
    common: &Common,
    read: impl Fn(&Path) -> Result<Vec<Item>, DataError>,
    generate: impl Fn(Split) -> Vec<Item>,
) -> anyhow::Result<Vec<Suite>> {
    if let (SplitChoice::Both, Some(path)) = (choice, &common.data)
        && path.is_file()
    {
        let message = format!(
            "{} is one file: say which split it is with --split interpolate or --split extrapolate, \
             or give a folder that holds both",
            path.display()
        );
        return Err(UsageError(message).into());
    }
    let suite = |&split: &Split| {
        let (mut items, setting) = match &common.data {
            Some(path) => {
                let file = place::find(task, &[&file_name(task, split, extension)], Some(path))?;
                (read(&file)?, from_file(&file))
            }
            None => (generate(split), ("data".to_owned(), json!("generated"))),
        };
        items.truncate(common.limit.map_or(usize::MAX, usize::from));
        let (split, settings) = (split.name().to_owned(), Map::from_iter([setting]));
        Ok(Suite { task, split, items, settings, traits: Traits::default() })
    };
    chosen(choice).iter().map(suite).collect()
}

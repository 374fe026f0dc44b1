//! Suites of tasks that have an interpolate and an extrapolate split, each read from a file or generated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, json};

use super::generate::Split;
use super::{Suite, from_file};
use crate::data::{DataError, Item, place};
use crate::error::UsageError;
use crate::settings::RunSettings;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SplitChoice {
    /// Like the training data.
    Interpolate,
    /// Beyond the training data.
    Extrapolate,
    /// Both, in a report each.
    Both,
}

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

/// Returns suites with the items that `read` finds in the files of `--data`, or with generated items if there
/// is no `--data`.
pub fn suites(
    task: &'static str,
    extension: &str,
    choice: SplitChoice,
    settings: &RunSettings,
    read: impl Fn(&Path) -> Result<Vec<Item>, DataError>,
    generate: impl Fn(Split) -> Vec<Item>,
) -> anyhow::Result<Vec<Suite>> {
    if let (SplitChoice::Both, Some(path)) = (choice, &settings.data)
        && path.is_file()
    {
        let message = format!(
            "{} is one file: say which split it is with --split interpolate or --split extrapolate, \
             or give a folder that holds both",
            path.display()
        );
        return Err(UsageError(message).into());
    }
    let mut suites = Vec::new();
    for &split in chosen(choice) {
        let (mut items, source) = match &settings.data {
            Some(path) => {
                let file = place::find(task, &[&file_name(task, split, extension)], Some(path))?;
                (read(&file)?, from_file(&file))
            }
            None => (generate(split), ("data".to_owned(), json!("generated"))),
        };
        if let Some(limit) = settings.limit {
            items = limited(items, limit.get(), settings.seed);
        }
        let split = split.name().to_owned();
        let settings = Map::from_iter([source]);
        suites.push(Suite { task, split, items, settings, ..Suite::default() });
    }
    Ok(suites)
}

/// Returns the first `limit` items. If items have modules, returns a random sample with all modules in
/// proportion to their sizes. Items stay in their order.
pub(super) fn limited(mut items: Vec<Item>, limit: usize, seed: u64) -> Vec<Item> {
    if items.iter().all(|item| item.module.is_none()) {
        items.truncate(limit);
        return items;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut modules: BTreeMap<Option<&str>, Vec<(u64, usize)>> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        modules.entry(item.module.as_deref()).or_default().push((rng.random(), index));
    }
    // The position of an item in its shuffled module, from 0 to 1: the smallest positions are in proportion.
    let mut places: Vec<(f64, u64, usize)> = Vec::with_capacity(items.len());
    for members in modules.values_mut() {
        members.sort_unstable();
        let size = members.len() as f64;
        let ranked = members.iter().enumerate();
        places.extend(ranked.map(|(rank, &(drawn, index))| ((rank as f64 + 0.5) / size, drawn, index)));
    }
    places.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let chosen: BTreeSet<usize> = places.into_iter().take(limit).map(|(.., index)| index).collect();
    let numbered = items.into_iter().enumerate();
    numbered.filter(|(index, _)| chosen.contains(index)).map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_takes_from_every_module_in_proportion_and_by_the_seed() {
        let module = |name: &str, count: usize| -> Vec<Item> {
            let item = |index| Item {
                question: format!("{name} {index}"),
                module: Some(name.to_owned()),
                ..Item::default()
            };
            (0..count).map(item).collect()
        };
        let items = [module("1x1", 200), module("1x2", 100), module("6x6", 100)].concat();
        let sample = limited(items.clone(), 40, 1);
        let count = |name: &str| sample.iter().filter(|item| item.module.as_deref() == Some(name)).count();
        assert_eq!((count("1x1"), count("1x2"), count("6x6")), (20, 10, 10));
        let position = |item: &Item| items.iter().position(|other| other == item).unwrap();
        assert!(sample.windows(2).all(|pair| position(&pair[0]) < position(&pair[1])));
        assert_eq!(sample, limited(items.clone(), 40, 1));
        assert_ne!(sample, limited(items.clone(), 40, 2));
        assert_eq!(limited(items.clone(), 999, 1), items);
        let plain: Vec<Item> = items.iter().map(|item| Item { module: None, ..item.clone() }).collect();
        assert_eq!(limited(plain.clone(), 40, 1), plain[..40]);
    }
}

//! Products of two integers of k and l digits, as in the decoder-only experiments of the NTL paper: trained
//! on 1 to 5 digits, tested on 1 to 6, scored by the mean relative error of each pair of lengths.
//!
//! Items are read from the paper's preprocessed files, or generated. Modules are the pairs of lengths, such
//! as `3x4`.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::generate::Split;
use super::splits::{self, SplitChoice};
use super::{Entry, Origin, Suite};
use crate::data::read::{Truth, questions};
use crate::data::{DataError, Item};
use crate::settings::RunSettings;

pub const ENTRY: Entry = Entry {
    name: "multiplication",
    about: "products of integers of 1 to 6 digits; relative error overall and by lengths",
    origin: Origin::Generated(|seed| {
        let mut files = Vec::new();
        for split in [Split::Interpolate, Split::Extrapolate] {
            let name = splits::file_name("multiplication", split, "jsonl");
            files.push((name, items(split, seed, PER_CELL)));
        }
        files
    }),
};

const TRAINED_DIGITS_MAX: u32 = 5;

const TESTED_DIGITS_MAX: u32 = 6;

/// Items for each pair of lengths.
const PER_CELL: usize = 100;

/// `per_cell`: generated items for each pair of lengths, or all if there are fewer.
pub fn suites(
    choice: SplitChoice,
    per_cell: NonZeroUsize,
    settings: &RunSettings,
) -> anyhow::Result<Vec<Suite>> {
    splits::suites(ENTRY.name, "jsonl", choice, settings, read, |split| {
        items(split, settings.seed, per_cell.get())
    })
}

fn read(file: &Path) -> Result<Vec<Item>, DataError> {
    let mut items = questions(file, Truth::Number)?;
    for item in &mut items {
        item.module = cell(&item.question);
    }
    Ok(items)
}

/// The lengths of the two numbers in a question.
fn cell(question: &str) -> Option<String> {
    let numbers = question.split(|c: char| !c.is_ascii_digit()).filter(|text| !text.is_empty());
    match numbers.collect::<Vec<_>>().as_slice() {
        [a, b] => Some(format!("{}x{}", a.len(), b.len())),
        _ => None,
    }
}

/// Distinct items for each pair of lengths.
pub fn items(split: Split, seed: u64, per_cell: usize) -> Vec<Item> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut items = Vec::new();
    for (k, l) in (1..=TESTED_DIGITS_MAX).flat_map(|k| (1..=TESTED_DIGITS_MAX).map(move |l| (k, l))) {
        if (k.max(l) > TRAINED_DIGITS_MAX) == (split == Split::Extrapolate) {
            fill(&mut items, k, l, per_cell, &mut rng);
        }
    }
    items
}

/// `k`, `l`: digits of the factors.
fn fill(items: &mut Vec<Item>, k: u32, l: u32, per_cell: usize, rng: &mut ChaCha8Rng) {
    let [first, second] = [k, l].map(|digits| 10_u64.pow(digits - 1)..10_u64.pow(digits));
    let all = (first.end - first.start) * (second.end - second.start);
    let count = per_cell.min(usize::try_from(all).unwrap_or(usize::MAX));
    let mut seen = HashSet::with_capacity(count);
    while seen.len() < count {
        let a = rng.random_range(first.clone());
        let b = rng.random_range(second.clone());
        if seen.insert((a, b)) {
            items.push(Item {
                question: format!("What is {a} times {b}?"),
                answer: (a * b).to_string(),
                // At most 10^12: exact in f64.
                truth: Some((a * b) as f64),
                module: Some(format!("{k}x{l}")),
                ..Item::default()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_cell_has_its_items_and_they_are_right() {
        for (split, cells, smallest) in [(Split::Interpolate, 25, 81), (Split::Extrapolate, 11, 100)] {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for item in items(split, 1, 100) {
                let numbers: Vec<u64> = item
                    .question
                    .split(|c: char| !c.is_ascii_digit())
                    .filter_map(|text| text.parse().ok())
                    .collect();
                assert_eq!((numbers[0] * numbers[1]).to_string(), item.answer);
                assert_eq!(cell(&item.question), item.module);
                *counts.entry(item.module.unwrap()).or_default() += 1;
            }
            assert_eq!((counts.len(), counts.values().min()), (cells, Some(&smallest)), "{split:?}");
        }
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(items(Split::Extrapolate, 1, 3), items(Split::Extrapolate, 1, 3));
        assert_ne!(items(Split::Extrapolate, 1, 3), items(Split::Extrapolate, 2, 3));
        assert_eq!(cell("What is 12?"), None);
    }
}

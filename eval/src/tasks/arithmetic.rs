//! Sums and differences of integers: DeepMind's `arithmetic__add_sub_multiple` (interpolate) and
//! `arithmetic__add_sub_multiple_longer` (extrapolate), as in Table 2 of the NTL paper.
//!
//! Items are read from files in the paper's two-line format, or generated.

use std::path::Path;

use super::generate::{self, Split};
use super::splits::{self, SplitChoice};
use super::{Entry, Origin, Suite};
use crate::data::read::{Truth, pairs};
use crate::settings::RunSettings;

pub const ENTRY: Entry = Entry {
    name: "arithmetic",
    about: "sums and differences of integers (DeepMind mathematics, add_sub_multiple and its longer form)",
    origin: Origin::Generated(|seed| {
        let file = |split: Split| {
            (splits::file_name("arithmetic", split, "txt"), generate::items(split, seed, GENERATED))
        };
        vec![file(Split::Interpolate), file(Split::Extrapolate)]
    }),
};

/// As many as DeepMind's test files hold.
const GENERATED: usize = 10_000;

pub fn suites(choice: SplitChoice, settings: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    let generate = |split| generate::items(split, settings.seed, GENERATED);
    let read = |file: &Path| pairs(file, Truth::Number);
    splits::suites(ENTRY.name, "txt", choice, settings, read, generate)
}

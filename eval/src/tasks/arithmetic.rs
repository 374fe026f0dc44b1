//! Sums and differences of integers: DeepMind's `arithmetic__add_sub_multiple` (interpolate) and
//! `arithmetic__add_sub_multiple_longer` (extrapolate), as in Table 2 of the NTL paper.
//!
//! Items are read from files in the paper's two-line format, or generated.

use super::generate::{self, Split};
use super::splits::{self, SplitChoice};
use super::{Entry, Origin, Suite};
use crate::data::read::{Truth, pairs};
use crate::settings::RunSettings;

pub const ENTRY: Entry = Entry {
    name: "arithmetic",
    about: "sums and differences of integers (DeepMind mathematics, add_sub_multiple and its longer form)",
    origin: Origin::Generated(|seed| {
        let mut files = Vec::new();
        for split in [Split::Interpolate, Split::Extrapolate] {
            let name = splits::file_name("arithmetic", split, "txt");
            files.push((name, generate::items(split, seed, GENERATED)));
        }
        files
    }),
};

/// As many as DeepMind's test files hold.
const GENERATED: usize = 10_000;

pub fn suites(choice: SplitChoice, settings: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    splits::suites(
        ENTRY.name,
        "txt",
        choice,
        settings,
        |file| pairs(file, Truth::Number),
        |split| generate::items(split, settings.seed, GENERATED),
    )
}

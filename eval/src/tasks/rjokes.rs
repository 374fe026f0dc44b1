//! How funny is a joke: rJokes (Weller and Seppi 2020), the logarithm of its upvotes as a whole number from 0
//! to 11, as in the regression table of the NTL paper.
//!
//! Items are read from the published files, packed or not, or the paper's preprocessed form.

use serde_json::Map;

use super::{Entry, Origin, Suite, Traits, from_file};
use crate::data::fetch::Source;
use crate::data::place;
use crate::data::read::{Truth, questions, scores};
use crate::settings::RunSettings;

pub const ENTRY: Entry = Entry {
    name: "rjokes",
    about: "upvotes of jokes, 0 to 11 (rJokes); RMSE and correlation, beside constant answers",
    origin: Origin::Published(&[
        Source::pinned(
            "https://raw.githubusercontent.com/orionw/rJokesData/d48bedd71bdacc7557b84ad697bf556e7aad7c21/data/test.tsv.gz",
            "a3818c1c012e413f61179eb9f89d611a3b7091320a5137a1c3be21dbbe54a1fc",
        ),
        Source::pinned(
            "https://raw.githubusercontent.com/orionw/rJokesData/d48bedd71bdacc7557b84ad697bf556e7aad7c21/data/dev.tsv.gz",
            "8787317555ad6c11f27843c47aaf202ffef90a55a16f5829ef0a0bcc9ca6bde9",
        ),
    ]),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RjokesSplit {
    Test,
    Dev,
}

pub fn suites(split: RjokesSplit, settings: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    let split = match split {
        RjokesSplit::Test => "test",
        RjokesSplit::Dev => "dev",
    };
    let names = ["tsv.gz", "tsv", "jsonl"].map(|extension| format!("{split}.{extension}"));
    let file = place::find(ENTRY.name, &names.each_ref().map(String::as_str), settings.data.as_deref())?;
    let preprocessed = file.extension().is_some_and(|extension| extension == "jsonl");
    let mut items = if preprocessed { questions(&file, Truth::Number)? } else { scores(&file)? };
    items.truncate(settings.limit.map_or(usize::MAX, usize::from));
    Ok(vec![Suite {
        task: ENTRY.name,
        split: split.to_owned(),
        items,
        settings: Map::from_iter([from_file(&file)]),
        traits: Traits { max_tokens: 8, ..Traits::default() },
        ..Suite::default()
    }])
}

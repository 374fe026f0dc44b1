//! Questions about short texts, answered in words: MultiRC of SuperGLUE, reworded as in the NTL paper. Shows
//! what a number loss does to ordinary text.
//!
//! Items are read from SuperGLUE's validation file (its test file has no answers) or the paper's preprocessed
//! form.

use serde_json::Map;

use super::{Entry, Origin, Suite, Traits, from_file};
use crate::data::fetch::Source;
use crate::data::place;
use crate::data::read::{Truth, passages, questions, text};
use crate::error::UsageError;
use crate::settings::RunSettings;
use crate::settings::mode::Mode;

pub const ENTRY: Entry = Entry {
    name: "multirc",
    about: "questions about texts, answered in words (SuperGLUE MultiRC); exact match, F1, BLEU, ROUGE",
    origin: Origin::Published(&[Source {
        url: "https://dl.fbaipublicfiles.com/glue/superglue/data/v2/MultiRC.zip",
        sha256: None,
        members: &["val.jsonl"],
    }]),
};

pub fn suites(settings: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    if settings.mode == Mode::Regress {
        return Err(UsageError("multirc asks for words: --mode regress has no meaning".to_owned()).into());
    }
    let file = place::find(ENTRY.name, &["val.jsonl", "val_clean.jsonl"], settings.data.as_deref())?;
    let published = text(&file)?.lines().next().is_some_and(|line| line.contains("\"passage\""));
    let mut items = if published { passages(&file)? } else { questions(&file, Truth::Text)? };
    items.truncate(settings.limit.map_or(usize::MAX, usize::from));
    Ok(vec![Suite {
        task: ENTRY.name,
        split: "validation".to_owned(),
        items,
        settings: Map::from_iter([from_file(&file)]),
        traits: Traits { max_tokens: 64, texts: true, ..Traits::default() },
        ..Suite::default()
    }])
}

//! Files of a user's own items: the records of `custom` and `judge`, with or without the incomplete ones.
//!
//! In: the file of `--data`, and the fields that every item needs. Out: the records, how many were left out,
//! and the name of the split.

use std::path::Path;

use indexmap::IndexMap;
use serde_json::{Value, json};

use crate::data::DataError;
use crate::data::records::{Record, records};
use crate::format::count;

/// How the file of `--data` is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnFile {
    /// Whether to leave out items without a field that every item needs.
    pub skip_missing: bool,
    /// Separates the fields of a file that is not JSON.
    pub delimiter: Option<u8>,
}

/// Reads the character that separates the fields of a file.
pub(super) fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\r' | b'\n') => Ok(*byte),
        _ => Err("expected one character, such as `;`, or `tab`".to_owned()),
    }
}

/// The records that a task evaluates.
#[derive(Debug)]
pub(super) struct OwnItems {
    pub(super) records: Vec<Record>,
    /// The name of the file without its endings.
    pub(super) split: String,
    /// With `--skip-missing`: the records that are left out.
    pub(super) skipped: Option<Skipped>,
}

/// Records that `--skip-missing` leaves out.
#[derive(Debug, Default)]
pub(super) struct Skipped {
    /// Number of records, by the first field that each lacks.
    counts: IndexMap<String, usize>,
    /// The line of the first one.
    first_line: usize,
    /// Number of records in the file.
    total: usize,
}

impl Skipped {
    /// Returns the value for the settings of a report.
    pub(super) fn setting(&self) -> (String, Value) {
        ("skipped_items".to_owned(), json!(self.counts))
    }

    /// Returns a sentence with the counts.
    pub(super) fn notice(&self) -> String {
        let skipped: usize = self.counts.values().sum();
        let total = count(self.total);
        if skipped == 0 {
            return format!("--skip-missing left out none of {total} items");
        }
        let fields = self.counts.iter().map(|(name, n)| format!("{} without `{name}`", count(*n)));
        let fields = fields.collect::<Vec<_>>().join(", ");
        let first = self.first_line;
        format!(
            "--skip-missing left out {} of {total} items: {fields}; the first is on line {first}",
            count(skipped)
        )
    }
}

/// Reads a file. `required`: the fields that an item needs; with `skip_missing`, items without one of them
/// are left out.
pub(super) fn read(file: &Path, reading: OwnFile, required: &[&str]) -> Result<OwnItems, DataError> {
    let mut records = records(file, reading.delimiter)?;
    let skipped = reading.skip_missing.then(|| remove_incomplete(&mut records, required));
    if let Some(skipped) = &skipped
        && records.is_empty()
    {
        return Err(DataError::NoneComplete { file: file.to_owned(), skipped: skipped.notice() });
    }
    Ok(OwnItems { records, split: name(file), skipped })
}

/// Returns the name of a file without its endings, which is the name of its split.
pub(super) fn name(file: &Path) -> String {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}

fn remove_incomplete(records: &mut Vec<Record>, required: &[&str]) -> Skipped {
    let mut skipped = Skipped { total: records.len(), ..Skipped::default() };
    records.retain(|record| {
        let Some(lacking) = required.iter().find(|name| record.is_missing(name)) else { return true };
        if skipped.counts.is_empty() {
            skipped.first_line = record.line();
        }
        *skipped.counts.entry((*lacking).to_owned()).or_default() += 1;
        false
    });
    skipped
}

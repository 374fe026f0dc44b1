//! Append-only files of answers: the journal of a run, which `--resume` continues, and the cache that runs share.
//!
//! The first line says what run the answers belong to; a journal of another run is refused. Every line is written in one
//! go, and a last line without its end, which a crash may leave, is cut off.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("could not use {}", .file.display())]
    File { file: PathBuf, source: io::Error },
    /// `line`: from 1.
    #[error("{} line {line} is damaged; remove the file to begin anew", .file.display())]
    Damaged { file: PathBuf, line: usize },
    #[error("{} is of a run with other settings: {differences}; use the same settings, another --out, or --overwrite", .file.display())]
    OtherRun { file: PathBuf, differences: String },
    #[error(
        "{} is of a run that did not end: go on with --resume, start again with --overwrite, or use another --out",
        .file.display()
    )]
    Unfinished { file: PathBuf },
    #[error(
        "{} holds a finished run: replace it with --overwrite, request what it lacks with --resume, or use another --out",
        .folder.display()
    )]
    Finished { folder: PathBuf },
    #[error(
        "{} holds a finished run without its journal.jsonl: replace it with --overwrite, or use another --out",
        .folder.display()
    )]
    FinishedWithoutJournal { folder: PathBuf },
}

#[derive(Serialize, Deserialize)]
struct Entry {
    id: String,
    key: String,
    value: Box<RawValue>,
}

#[derive(Serialize)]
struct NewEntry<'a, T> {
    id: &'a str,
    key: &'a str,
    value: &'a T,
}

#[derive(Debug)]
pub struct Journal {
    file: PathBuf,
    open: File,
    /// Keys and answers by id, as they were when the file was opened.
    entries: HashMap<String, (String, Box<RawValue>)>,
}

impl Journal {
    /// Opens or creates the file. `header` describes the run and must equal that of an existing file.
    pub fn open(file: &Path, header: &Value) -> Result<Self, JournalError> {
        let failed = |source| JournalError::File { file: file.to_owned(), source };
        let mut open = OpenOptions::new().create(true).read(true).append(true).open(file).map_err(failed)?;
        let bytes = fs::read(file).map_err(failed)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < bytes.len() {
            open.set_len(whole as u64).map_err(failed)?;
            open.seek(SeekFrom::End(0)).map_err(failed)?;
        }
        let mut journal = Self { file: file.to_owned(), open, entries: HashMap::new() };
        let mut lines = bytes[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        match lines.next() {
            None => journal.line(header)?,
            Some(first) => journal.check(first, header)?,
        }
        for (index, line) in lines.enumerate() {
            let damaged = |_| JournalError::Damaged { file: file.to_owned(), line: index + 2 };
            let Entry { id, key, value } = serde_json::from_slice(line).map_err(damaged)?;
            journal.entries.insert(id, (key, value));
        }
        Ok(journal)
    }

    fn check(&self, first: &[u8], header: &Value) -> Result<(), JournalError> {
        let file = || self.file.clone();
        let found: Map<String, Value> =
            serde_json::from_slice(first).map_err(|_| JournalError::Damaged { file: file(), line: 1 })?;
        let found = Value::Object(found);
        let names: BTreeSet<&String> =
            [header, &found].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
        let differences: Vec<String> = names
            .into_iter()
            .map(|name| (name, found.get(name), header.get(name)))
            .filter(|(_, was, is)| was != is)
            .map(|(name, was, is)| format!("{name} was {}, is {}", shown(was), shown(is)))
            .collect();
        if differences.is_empty() {
            return Ok(());
        }
        Err(JournalError::OtherRun { file: file(), differences: differences.join("; ") })
    }

    /// The answer that was under `id` when the file was opened, if its request had the same `key`.
    pub fn get<T: DeserializeOwned>(&self, id: &str, key: &str) -> Option<T> {
        let (known, value) = self.entries.get(id)?;
        if known != key {
            return None;
        }
        serde_json::from_str(value.get()).ok()
    }

    pub fn add(&mut self, id: &str, key: &str, value: &impl Serialize) -> Result<(), JournalError> {
        self.line(&NewEntry { id, key, value })
    }

    fn line(&mut self, entry: &impl Serialize) -> Result<(), JournalError> {
        let mut write = || {
            let mut line = serde_json::to_vec(entry)?;
            line.push(b'\n');
            self.open.write_all(&line)
        };
        write().map_err(|source| JournalError::File { file: self.file.clone(), source })
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or("not set".to_owned(), |value| value.to_string().chars().take(60).collect())
}

/// A digest of serialisable values: 32 hexadecimal digits.
#[expect(clippy::expect_used, reason = "requests and items are structs and JSON values with string keys")]
pub fn key(parts: &impl Serialize) -> String {
    let text = serde_json::to_vec(parts).expect("the parts serialise to JSON");
    let mut digest = format!("{:x}", Sha256::digest(text));
    digest.truncate(32);
    digest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn header(limit: u64) -> Value {
        json!({ "task": "t", "limit": limit })
    }

    #[test]
    fn answers_are_there_after_reopening_and_a_torn_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("journal.jsonl");
        let mut journal = Journal::open(&file, &header(1)).unwrap();
        journal.add("answer 0", "k", &json!({ "text": "a" })).unwrap();
        journal.add("answer 1", "k", &json!({ "text": "b" })).unwrap();
        drop(journal);
        let whole = fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            let mut journal = Journal::open(&file, &header(1)).unwrap();
            let before = journal.entries.len();
            assert_eq!(before, whole[..cut].iter().filter(|byte| **byte == b'\n').count().saturating_sub(1));
            journal.add("answer 2", "k", &json!(3)).unwrap();
            drop(journal);
            assert_eq!(Journal::open(&file, &header(1)).unwrap().entries.len(), before + 1, "cut at {cut}");
        }
    }

    #[test]
    fn an_answer_is_only_given_for_the_same_request() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&folder.path().join("j"), &header(1)).unwrap();
        journal.add("answer 0", "one", &json!(5)).unwrap();
        let journal = Journal::open(&folder.path().join("j"), &header(1)).unwrap();
        assert_eq!(
            (journal.get::<u8>("answer 0", "one"), journal.get::<u8>("answer 0", "two")),
            (Some(5), None)
        );
    }

    #[test]
    fn another_run_s_journal_is_refused_and_says_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("j");
        Journal::open(&file, &header(100)).unwrap();
        let error = Journal::open(&file, &header(200)).unwrap_err().to_string();
        assert!(error.contains("other settings: limit was 100, is 200;"), "{error}");
    }

    #[test]
    fn damage_in_the_middle_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("j");
        Journal::open(&file, &header(1)).unwrap();
        let mut text = fs::read_to_string(&file).unwrap();
        text.push_str("{\"id\": 1\n{}\n");
        fs::write(&file, text).unwrap();
        let error = Journal::open(&file, &header(1)).unwrap_err().to_string();
        assert!(error.ends_with("line 2 is damaged; remove the file to begin anew"), "{error}");
    }
}

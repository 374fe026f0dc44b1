//! Append-only files of answers: the journal of a run, which a crashed run goes on from, and the cache that runs share.
//!
//! In: answers under ids. Out: the same after a crash at any point: every line is written in one go, and a last line
//! without its end is cut off. The first line of a journal says what run it is of; with another run's journal nothing
//! goes on.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::data::fetch::hex;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Not readable or writable.
    #[error("could not use {}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A line in the middle that is no entry.
    #[error("{} line {line} is damaged; remove the file to begin anew", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// It is another run's.
    #[error("{} is of a run with other settings: {differences}; use another --out, or the same settings", .file.display())]
    OtherRun {
        /// The file.
        file: PathBuf,
        /// What differs.
        differences: String,
    },
    /// It would be lost.
    #[error(
        "{} is of a run that did not end: go on with --resume, remove it, or use another --out",
        .file.display()
    )]
    Unfinished {
        /// The file.
        file: PathBuf,
    },
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

/// An open file of answers.
#[derive(Debug)]
pub struct Journal {
    file: PathBuf,
    open: File,
    /// What was there when it was opened.
    entries: HashMap<String, (String, Box<RawValue>)>,
}

impl Journal {
    /// Opens or makes the file. `header`: what the run is; must be that of the file, where it has one.
    ///
    /// # Errors
    /// The file cannot be used, is damaged before its last line, or is another run's.
    pub fn open(file: &Path, header: &Map<String, Value>) -> Result<Self, JournalError> {
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
            None => journal.line(&Value::Object(header.clone()))?,
            Some(first) => journal.check(first, header)?,
        }
        for (index, line) in lines.enumerate() {
            let damaged = |_| JournalError::Damaged { file: file.to_owned(), line: index + 2 };
            let Entry { id, key, value } = serde_json::from_slice(line).map_err(damaged)?;
            journal.entries.insert(id, (key, value));
        }
        Ok(journal)
    }

    fn check(&self, first: &[u8], header: &Map<String, Value>) -> Result<(), JournalError> {
        let file = || self.file.clone();
        let found: Map<String, Value> =
            serde_json::from_slice(first).map_err(|_| JournalError::Damaged { file: file(), line: 1 })?;
        let mut differences = Vec::new();
        for name in header.keys().chain(found.keys().filter(|name| !header.contains_key(*name))) {
            let (was, is) = (found.get(name), header.get(name));
            if was != is {
                differences.push(format!("{name} was {}, is {}", shown(was), shown(is)));
            }
        }
        match differences.is_empty() {
            true => Ok(()),
            false => Err(JournalError::OtherRun { file: file(), differences: differences.join("; ") }),
        }
    }

    /// How many answers it held when it was opened.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it held none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The answer that was under `id` when the file was opened, if it is one to the request behind `key`.
    pub fn get<T: DeserializeOwned>(&self, id: &str, key: &str) -> Option<T> {
        let (known, value) = self.entries.get(id)?;
        if known != key {
            return None;
        }
        serde_json::from_str(value.get()).ok()
    }

    /// Adds an answer.
    ///
    /// # Errors
    /// The file cannot be written to.
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

/// A short name for a request: equal for equal routes and bodies.
pub fn key(parts: &impl Serialize) -> String {
    let text = serde_json::to_vec(parts).unwrap_or_default();
    hex(&Sha256::digest(text)[..16])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn header(limit: u64) -> Map<String, Value> {
        json!({ "task": "t", "limit": limit }).as_object().unwrap().clone()
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
            let before = journal.len();
            assert_eq!(before, whole[..cut].iter().filter(|byte| **byte == b'\n').count().saturating_sub(1));
            journal.add("answer 2", "k", &json!(3)).unwrap();
            drop(journal);
            assert_eq!(Journal::open(&file, &header(1)).unwrap().len(), before + 1, "cut at {cut}");
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

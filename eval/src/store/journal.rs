//! Append-only files of answers: the journal of a run, which `--resume` continues, and the cache that runs
//! share.
//!
//! The first line says what run the answers belong to; a journal of another run is refused. Every line is
//! written in one go and ends in a checksum of itself, so that a changed byte is an error and not another
//! answer. A last line without its end, which a crash may leave, is cut off once the rest is accepted. Files
//! whose first line has no checksum, from before there were any, are read without them.
//!
//! One run at a time writes a journal, and holds its lock. Several processes may write a cache: each holds
//! the lock while it opens the file and while it appends a line.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ntl_common::regular_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::RUN_BYTES_MAX;
use super::disk::DiskFile;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("could not use {}", .file.display())]
    File { file: PathBuf, source: io::Error },
    /// `line`: from 1.
    #[error("{} line {line} is damaged: remove this line, and its answer is requested again", .file.display())]
    Damaged { file: PathBuf, line: usize },
    #[error(
        "{} line 1, which describes the run, is damaged: use another --out, or start again with --overwrite",
        .file.display()
    )]
    DamagedHeader { file: PathBuf },
    #[error("another run is writing {}: wait for its end, or use another --out", .file.display())]
    InUse { file: PathBuf },
    #[error("{} is of a run with other settings: {differences}; use the same settings, another --out, or --overwrite", .file.display())]
    OtherRun { file: PathBuf, differences: String },
    /// `was`, `is`: fingerprints.
    #[error(
        "{} holds answers of another checkpoint: the server's `{model}` had the fingerprint {was}, now it has {is}; serve that \
         checkpoint, use another --out, or start again with --overwrite", .file.display()
    )]
    OtherCheckpoint { file: PathBuf, model: String, was: String, is: String },
    #[error(
        "{} is of a run that did not end: continue with --resume, start again with --overwrite, or use another --out",
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
    #[error(
        "{} holds a report.json that cannot be read, and no journal.jsonl: replace it with --overwrite, or use another --out",
        .folder.display()
    )]
    DamagedReport { folder: PathBuf },
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

/// Hexadecimal digits of a checksum.
const SUM_DIGITS: usize = 16;

/// The end of a line that has a checksum, up to it.
const SUM_START: &str = ",\"sum\":\"";

/// The field of a header that says which checkpoint answered.
const CHECKPOINT: &str = "model_fingerprint";

/// Fields of a header that say which model answered, and what `/v1/models` calls them. A field that the
/// journal or the server lacks is not checked.
pub const MODEL_FIELDS: [(&str, &str); 3] =
    [(CHECKPOINT, "fingerprint"), ("model_dtype", "dtype"), ("model_kv_cache_dtype", "kv_cache_dtype")];

/// An open file for a journal, which may be locked.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    open: File,
}

impl JournalFile {
    /// Opens or creates the file.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let open = regular_file::open_append(path, RUN_BYTES_MAX)
            .map_err(|source| JournalError::File { file: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), open })
    }

    /// Locks the file until this and all journals made of it are dropped. File systems without locks have
    /// none.
    pub fn lock(self) -> Result<Self, JournalError> {
        match self.open.try_lock() {
            Err(TryLockError::WouldBlock) => Err(JournalError::InUse { file: self.path }),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(self),
        }
    }

    /// Returns the file and what it contains.
    fn contents(&self) -> io::Result<(DiskFile, Vec<u8>)> {
        let mut open = DiskFile(self.open.try_clone()?);
        let mut bytes = Vec::new();
        open.0.seek(SeekFrom::Start(0))?;
        open.read_to_end(&mut bytes)?;
        Ok((open, bytes))
    }

    pub fn clear(&self) -> Result<(), JournalError> {
        self.open.set_len(0).map_err(|source| JournalError::File { file: self.path.clone(), source })
    }
}

#[derive(Debug)]
pub struct Journal {
    file: PathBuf,
    open: DiskFile,
    /// Whether other processes may append to the file.
    is_shared: bool,
    /// Keys and answers by id, as they were when the file was opened. [`Journal::share`] adds to them.
    entries: HashMap<String, (String, Box<RawValue>)>,
}

impl Journal {
    /// Opens or creates a file that other processes may use at the same time. `header` describes its answers
    /// and must equal that of an existing file.
    pub fn open(file: &Path, header: &Value) -> Result<Self, JournalError> {
        let file = JournalFile::open(file)?;
        // File systems without locks have none.
        let _ = file.open.lock();
        let journal = Self::read(&file, header);
        let _ = file.open.unlock();
        Ok(Self { is_shared: true, ..journal? })
    }

    /// Reads the journal of a run, or begins it if the file is empty. An error leaves the file as it is.
    pub fn read(file: &JournalFile, header: &Value) -> Result<Self, JournalError> {
        let (open, bytes) =
            file.contents().map_err(|source| JournalError::File { file: file.path.clone(), source })?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut journal = Self { file: file.path.clone(), open, is_shared: false, entries: HashMap::new() };
        let lines = bytes[..whole].split(|byte| *byte == b'\n').zip(1..);
        let mut lines = lines.filter(|(line, _)| !line.is_empty());
        let Some((first, _)) = lines.next() else {
            journal.open.0.set_len(0).map_err(|source| journal.failed(source))?;
            journal.line(header)?;
            return Ok(journal);
        };
        let (first, is_checked) =
            without_sum(first).map_err(|WrongSum| JournalError::DamagedHeader { file: file.path.clone() })?;
        journal.check(&first, header)?;
        for (line, number) in lines {
            let Some(Entry { id, key, value }) = entry(line, is_checked) else {
                return Err(JournalError::Damaged { file: file.path.clone(), line: number });
            };
            journal.entries.insert(id, (key, value));
        }
        if whole < bytes.len() {
            journal.open.0.set_len(whole as u64).map_err(|source| journal.failed(source))?;
        }
        Ok(journal)
    }

    fn check(&self, first: &[u8], header: &Value) -> Result<(), JournalError> {
        let file = self.file.clone();
        let Ok(Value::Object(found)) = serde_json::from_slice::<Value>(first) else {
            return Err(JournalError::DamagedHeader { file });
        };
        let mut names: BTreeSet<&String> = found.keys().collect();
        names.extend(header.as_object().into_iter().flat_map(Map::keys));
        let mut differences = Vec::new();
        for name in names {
            let was = found.get(name);
            let is = header.get(name);
            let is_of_model = MODEL_FIELDS.iter().any(|(field, _)| field == name);
            let is_checked = name != CHECKPOINT && (!is_of_model || is_named(was) && is_named(is));
            if is_checked && was != is {
                differences.push(format!("{name} was {}, is {}", shown(was), shown(is)));
            }
        }
        if !differences.is_empty() {
            return Err(JournalError::OtherRun { file, differences: differences.join("; ") });
        }
        let was = found.get(CHECKPOINT).and_then(Value::as_str);
        let is = header.get(CHECKPOINT).and_then(Value::as_str);
        match (was, is) {
            (Some(was), Some(is)) if was != is => Err(JournalError::OtherCheckpoint {
                file,
                model: header.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
                was: was.to_owned(),
                is: is.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the known answer under `id`, if its request had the same `key`.
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

    /// Adds an answer under its key, which [`Journal::get`] returns from now on.
    pub fn share(&mut self, key: &str, value: &impl Serialize) -> Result<(), JournalError> {
        let value = serde_json::value::to_raw_value(value).map_err(|error| self.failed(error.into()))?;
        self.add(key, key, &value)?;
        self.entries.insert(key.to_owned(), (key.to_owned(), value));
        Ok(())
    }

    fn line(&mut self, entry: &impl Serialize) -> Result<(), JournalError> {
        let line = serde_json::to_vec(entry).map_err(|error| self.failed(error.into()))?;
        let mut line = with_sum(line);
        line.push(b'\n');
        // Another process that opens the file must not find half a line, which it would cut off.
        if self.is_shared {
            let _ = self.open.0.lock();
        }
        let written = self.open.write_all(&line);
        if self.is_shared {
            let _ = self.open.0.unlock();
        }
        written.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> JournalError {
        JournalError::File { file: self.file.clone(), source }
    }
}

/// Reads a line after the header. `None` if it is damaged. `is_checked`: whether the header has a checksum,
/// so that every line needs one.
fn entry(line: &[u8], is_checked: bool) -> Option<Entry> {
    let (line, has_sum) = without_sum(line).ok()?;
    if is_checked && !has_sum {
        return None;
    }
    serde_json::from_slice(&line).ok()
}

fn is_named(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null())
}

/// `object`: the JSON of an object that is not empty.
fn with_sum(mut object: Vec<u8>) -> Vec<u8> {
    let sum = sum(&object);
    object.pop();
    object.extend_from_slice(format!("{SUM_START}{sum}\"}}").as_bytes());
    object
}

/// A line without its checksum, and whether it had one.
fn without_sum(line: &[u8]) -> Result<(Vec<u8>, bool), WrongSum> {
    let at = line.len().saturating_sub(SUM_START.len() + SUM_DIGITS + 2);
    let (object, end) = line.split_at(at);
    let found = end.strip_prefix(SUM_START.as_bytes()).and_then(|end| end.strip_suffix(b"\"}"));
    let Some(found) = found else { return Ok((line.to_owned(), false)) };
    let mut object = object.to_owned();
    object.push(b'}');
    if sum(&object).as_bytes() == found { Ok((object, true)) } else { Err(WrongSum) }
}

struct WrongSum;

fn sum(bytes: &[u8]) -> String {
    let mut digits = format!("{:x}", Sha256::digest(bytes));
    digits.truncate(SUM_DIGITS);
    digits
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
    use std::fs;

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
    fn a_rejected_journal_keeps_its_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        Journal::open(&path, &header(1)).unwrap();
        let started = fs::read_to_string(&path).unwrap();
        for (torn, limit) in [(format!("{started}{{\"id\":"), 2), (format!("{started}{{}}\n{{\"id\":"), 1)] {
            fs::write(&path, &torn).unwrap();
            let file = JournalFile::open(&path).unwrap();
            assert!(Journal::read(&file, &header(limit)).is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), torn);
        }
    }

    #[test]
    fn a_cache_is_opened_only_while_no_other_process_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut first = Journal::open(&path, &header(1)).unwrap();
        let half = JournalFile::open(&path).unwrap();
        half.open.lock().unwrap();
        (&half.open).write_all(b"{\"id\":").unwrap();
        let opening = {
            let path = path.clone();
            std::thread::spawn(move || Journal::open(&path, &header(1)))
        };
        // The line is complete before the other process gets the lock.
        (&half.open).write_all(b"\"k\",\"key\":\"k\",\"value\":5}\n").unwrap();
        half.open.unlock().unwrap();
        // A line without a checksum is damaged in a file with them.
        assert!(matches!(opening.join().unwrap(), Err(JournalError::Damaged { line: 2, .. })));
        first.share("a", &7).unwrap();
        assert_eq!(first.get::<u8>("a", "a"), Some(7));
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
        assert!(
            error.ends_with("line 2 is damaged: remove this line, and its answer is requested again"),
            "{error}"
        );
    }

    #[test]
    fn a_flipped_bit_is_an_error_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("j");
        let mut journal = Journal::open(&file, &header(1)).unwrap();
        journal.add("answer 0", "k", &json!({ "text": "142" })).unwrap();
        journal.add("answer 1", "k", &json!({ "text": "-7" })).unwrap();
        drop(journal);
        let whole = fs::read(&file).unwrap();
        // The last byte is the end of the last line, without which the line is cut off as after a crash.
        for (at, bit) in (0..whole.len() - 1).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            fs::write(&file, bytes).unwrap();
            assert!(Journal::open(&file, &header(1)).is_err(), "byte {at} bit {bit}");
        }
    }

    #[test]
    fn a_journal_from_before_checksums_is_read_and_gets_them_for_what_is_added() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("j");
        fs::write(&file, "{\"task\":\"t\",\"limit\":1}\n{\"id\":\"answer 0\",\"key\":\"k\",\"value\":5}\n")
            .unwrap();
        Journal::open(&file, &header(1)).unwrap().add("answer 1", "k", &json!(6)).unwrap();
        let journal = Journal::open(&file, &header(1)).unwrap();
        assert_eq!(
            (journal.get::<u8>("answer 0", "k"), journal.get::<u8>("answer 1", "k")),
            (Some(5), Some(6))
        );
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            text.lines().map(|line| line.contains("\"sum\"")).collect::<Vec<_>>(),
            [false, false, true]
        );
    }
}

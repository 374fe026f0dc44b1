//! Checkpoints to corrupt: the unpacked demo checkpoint, other checkpoints in memory, and ways to change
//! their files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ntl_models::inspect::{Depth, inspect};
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::{CheckpointFiles, LoadError};
use serde_json::{Map, Value};

/// The weights of the demo checkpoint.
pub(crate) const WEIGHTS: &str = "model.safetensors";

/// The demo checkpoint in its own directory, inside a temporary directory that no other test uses.
pub(crate) struct Unpacked {
    outer: tempfile::TempDir,
    pub(crate) folder: PathBuf,
}

impl Unpacked {
    pub(crate) fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("checkpoint-1");
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/demo/t5-ntl-was.tar.gz");
        let archive = flate2::read::GzDecoder::new(fs::File::open(archive).unwrap());
        tar::Archive::new(archive).unpack(&folder).unwrap();
        Self { outer, folder }
    }

    pub(crate) fn load(&self) -> Result<LoadedModel, LoadError> {
        load(&CheckpointFiles::folder(&self.folder)?, LoadOptions::default())
    }

    /// Returns the reason why it does not load, with `DIR` for the directory and `OUT` for its parent.
    pub(crate) fn reason(&self) -> String {
        let Err(error) = self.load() else { panic!("the corrupted checkpoint loads") };
        let reason = error.to_string().replace(&self.folder.display().to_string(), "DIR");
        let outer = self.outer.path().canonicalize().unwrap().display().to_string();
        reason.replace(&outer, "OUT").replace(&self.outer.path().display().to_string(), "OUT")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.file(name), content).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).unwrap();
    }

    /// Changes the fields of a JSON file.
    pub(crate) fn change_json(&self, name: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        let mut content: Value = serde_json::from_slice(&fs::read(self.file(name)).unwrap()).unwrap();
        change(content.as_object_mut().unwrap());
        self.write(name, content.to_string());
    }

    pub(crate) fn change_config(&self, field: &str, value: Value) {
        self.change_json("config.json", |config| {
            config.insert(field.to_owned(), value);
        });
    }

    /// Truncates a file to its first bytes.
    pub(crate) fn cut(&self, name: &str, keep: usize) {
        let bytes = fs::read(self.file(name)).unwrap();
        self.write(name, &bytes[..keep.min(bytes.len())]);
    }

    /// Changes the header and the data of the weights.
    pub(crate) fn change_weights(&self, change: impl FnOnce(&mut Map<String, Value>, &mut Vec<u8>)) {
        let (mut table, mut data) = split(&fs::read(self.file(WEIGHTS)).unwrap());
        change(&mut table, &mut data);
        self.write(WEIGHTS, joined(&table, &data));
    }

    /// Overwrites the second number of a tensor.
    pub(crate) fn overwrite(&self, tensor: &str, value: f32) {
        self.change_weights(|table, data| {
            let at = place(&table[tensor]).0 + 4;
            data[at..at + 4].copy_from_slice(&value.to_le_bytes());
        });
    }
}

/// The files of a checkpoint by name.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Reads all files of a directory and of the directories in it.
pub(crate) fn files_of(folder: &Path) -> Files {
    let mut files = Files::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let inner = files_of(&path).into_iter();
            files.extend(inner.map(|(file, content)| (format!("{name}/{file}"), content)));
        } else {
            files.insert(name, fs::read(&path).unwrap());
        }
    }
    files
}

/// Changes the field at a JSON pointer; `null` removes it.
pub(crate) fn change_json(files: &mut Files, name: &str, pointer: &str, value: &Value) {
    let mut json: Value = serde_json::from_slice(&files[name]).unwrap();
    let (object, field) = pointer.rsplit_once('/').unwrap();
    match json.pointer_mut(object).unwrap().as_object_mut() {
        Some(object) if value.is_null() => drop(object.remove(field)),
        Some(object) => drop(object.insert(field.to_owned(), value.clone())),
        None => *json.pointer_mut(pointer).unwrap() = value.clone(),
    }
    files.insert(name.to_owned(), json.to_string().into_bytes());
}

/// Changes the header of the weights.
pub(crate) fn change_table(files: &mut Files, change: impl FnOnce(&mut Map<String, Value>)) {
    let (mut table, data) = split(&files[WEIGHTS]);
    change(&mut table);
    files.insert(WEIGHTS.to_owned(), joined(&table, &data));
}

/// Returns the reason why a checkpoint in the directory `DIR` does not load, which must be one line.
#[track_caller]
pub(crate) fn rejection(files: Files) -> String {
    let files = CheckpointFiles::memory("DIR", files);
    let Err(error) = load(&files, LoadOptions::default()) else { panic!("the corrupted checkpoint loads") };
    let reason = error.to_string();
    assert!(!reason.contains('\n') && reason.len() < 1100, "{reason:?}");
    if let Err(error) = inspect(files, LoadOptions::default(), Depth::Tables) {
        assert_eq!(error.to_string(), reason);
    }
    reason
}

/// Splits a safetensors file into header and data.
pub(crate) fn split(bytes: &[u8]) -> (Map<String, Value>, Vec<u8>) {
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (table, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(table).unwrap(), data.to_vec())
}

/// Returns a safetensors file with this header and data.
pub(crate) fn joined(table: &Map<String, Value>, data: &[u8]) -> Vec<u8> {
    let table = Value::Object(table.clone()).to_string();
    [&(table.len() as u64).to_le_bytes(), table.as_bytes(), data].concat()
}

/// Returns the location of an entry's data.
pub(crate) fn place(entry: &Value) -> (usize, usize) {
    let offset = |index: usize| entry["data_offsets"][index].as_u64().unwrap() as usize;
    (offset(0), offset(1))
}

//! Inputs that mutations begin with: the fixtures of the repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A path of the repository.
fn path(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(below)
}

pub(crate) fn file(below: &str) -> Vec<u8> {
    let path = path(below);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders of a small checkpoint for every kind of model.
const TINY: &str = "models/tests/data/tiny";

/// `file` of these small checkpoints.
pub(crate) fn tiny(checkpoints: &[&str], name: &str) -> Vec<Vec<u8>> {
    checkpoints.iter().map(|checkpoint| file(&format!("{TINY}/{checkpoint}/{name}"))).collect()
}

/// All files of one of these small checkpoints; `None` where there is no such folder.
pub(crate) fn checkpoint(folder: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        Some((path.file_name()?.to_str()?.to_owned(), std::fs::read(&path).ok()?))
    };
    Some(path(TINY).join(folder).read_dir().ok()?.filter_map(read).collect())
}

/// An input that holds a file, or a body, and says in its first line which one.
pub(crate) fn named(name: &str, content: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"\n", content].concat()
}

/// The name and the content of such an input.
pub(crate) fn split_named(input: &[u8]) -> Option<(&str, &[u8])> {
    let at = input.iter().position(|&byte| byte == b'\n')?;
    Some((std::str::from_utf8(&input[..at]).ok()?, &input[at + 1..]))
}

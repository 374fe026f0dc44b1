//! Initial inputs for mutations: the fixtures of the repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns a path in the repository.
fn path(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(below)
}

pub(crate) fn file(below: &str) -> Vec<u8> {
    let path = path(below);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Directory of the small checkpoints, one for every kind of model.
const TINY: &str = "models/tests/data/tiny";
const HEADS: &str = "models/tests/data/heads";
const ADAPTERS: &str = "models/tests/data/adapters";

/// Returns the file `name` of each of these small checkpoints.
pub(crate) fn tiny(checkpoints: &[&str], name: &str) -> Vec<Vec<u8>> {
    checkpoints.iter().map(|checkpoint| file(&format!("{TINY}/{checkpoint}/{name}"))).collect()
}

/// Returns the file `name` of a small checkpoint with a head.
pub(crate) fn head(checkpoint: &str, name: &str) -> Vec<u8> {
    file(&format!("{HEADS}/{checkpoint}/{name}"))
}

/// Returns the file `name` of an adapter of a small checkpoint.
pub(crate) fn adapter(folder: &str, name: &str) -> Vec<u8> {
    file(&format!("{ADAPTERS}/{folder}/{name}"))
}

/// Returns all files of one of the small checkpoints, including those in inner directories, or `None` if
/// there is no such directory.
pub(crate) fn checkpoint(folder: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    files_of(TINY, folder).or_else(|| files_of(HEADS, folder))
}

fn files_of(parent: &str, folder: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    add_files(&path(parent).join(folder), "", &mut files)?;
    Some(files)
}

fn add_files(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) -> Option<()> {
    for entry in folder.read_dir().ok()? {
        let path = entry.ok()?.path();
        let name = format!("{prefix}{}", path.file_name()?.to_str()?);
        if path.is_dir() {
            add_files(&path, &format!("{name}/"), files)?;
        } else {
            files.insert(name, std::fs::read(&path).ok()?);
        }
    }
    Some(())
}

/// Returns an input that contains a file or a body, and its name in the first line.
pub(crate) fn named(name: &str, content: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"\n", content].concat()
}

/// Splits such an input into name and content.
pub(crate) fn split_named(input: &[u8]) -> Option<(&str, &[u8])> {
    let at = input.iter().position(|&byte| byte == b'\n')?;
    Some((std::str::from_utf8(&input[..at]).ok()?, &input[at + 1..]))
}

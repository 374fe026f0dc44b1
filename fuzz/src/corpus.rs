//! Inputs that mutations begin with: the fixtures of the repository.

use std::path::{Path, PathBuf};

/// A path of the repository.
pub(crate) fn path(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(below)
}

pub(crate) fn file(below: &str) -> Vec<u8> {
    let path = path(below);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders of a small checkpoint for every kind of model.
pub(crate) const TINY: &str = "models/tests/data/tiny";

/// `file` of these small checkpoints.
pub(crate) fn tiny(checkpoints: &[&str], name: &str) -> Vec<Vec<u8>> {
    checkpoints.iter().map(|checkpoint| file(&format!("{TINY}/{checkpoint}/{name}"))).collect()
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

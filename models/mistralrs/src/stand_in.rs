//! The directory that mistral.rs reads instead of the checkpoint's directory.
//!
//! It contains links to the weights, a configuration that mistral.rs can read, and a tokenizer with the
//! correct number of ids but no real contents: mistral.rs rejects or panics on many real tokenizers, and
//! needs none to compute logits. It contains no chat template and no generation settings, so that mistral.rs
//! never ends a sequence.

use std::io;
use std::path::Path;

use ntl_text::checkpoint::LoadError;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A temporary directory, deleted when dropped.
pub(crate) struct StandIn(TempDir);

impl StandIn {
    /// Creates the directory with a tokenizer of `ids` tokens.
    pub(crate) fn new(ids: usize) -> Result<Self, LoadError> {
        let folder = Self(tempfile::Builder::new().prefix("ntl-mistralrs-").tempdir().map_err(unusable)?);
        folder.write("tokenizer.json", &tokenizer(ids))?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, content: &Value) -> Result<(), LoadError> {
        std::fs::write(self.path().join(name), content.to_string()).map_err(unusable)
    }

    pub(crate) fn link(&self, name: &str, target: &Path) -> Result<(), LoadError> {
        std::os::unix::fs::symlink(target, self.path().join(name)).map_err(unusable)
    }
}

fn unusable(source: io::Error) -> LoadError {
    LoadError::Read { file: "a temporary folder".to_owned(), source }
}

fn tokenizer(ids: usize) -> Value {
    let vocab: Map<String, Value> = (0..ids).map(|id| (format!("t{id}"), id.into())).collect();
    json!({
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"},
    })
}

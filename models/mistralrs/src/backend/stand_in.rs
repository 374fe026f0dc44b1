//! The folder that mistral.rs reads in the place of a checkpoint's own.
//!
//! It holds links to the weights, a configuration as mistral.rs wants it, and a tokenizer that says nothing but how many
//! ids there are: mistral.rs refuses or panics on many real ones, and needs none to compute logits. No template, no
//! generation settings, so that it ends no sequence by itself.

use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A folder that is gone once the model is loaded.
pub(super) struct StandIn(TempDir);

impl StandIn {
    /// A folder with a tokenizer of so many ids.
    pub(super) fn new(ids: usize) -> io::Result<Self> {
        let folder = Self(tempfile::Builder::new().prefix("ntl-mistralrs-").tempdir()?);
        folder.write("tokenizer.json", &tokenizer(ids))?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn write(&self, name: &str, content: &Value) -> io::Result<()> {
        std::fs::write(self.path().join(name), content.to_string())
    }

    pub(super) fn link(&self, name: &str, target: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, self.path().join(name))
    }
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

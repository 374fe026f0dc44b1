//! The folder that mistral.rs reads in place of the checkpoint's own.
//!
//! It holds links to the weights, a configuration that mistral.rs can read, and a tokenizer that only has the right number
//! of ids: mistral.rs refuses or panics on many real ones, and needs none to compute logits. It holds no chat template and
//! no generation settings, so that mistral.rs ends no sequence by itself.

use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A temporary folder, deleted when dropped.
pub(crate) struct StandIn(TempDir);

impl StandIn {
    /// Creates the folder with a tokenizer of `ids` tokens.
    pub(crate) fn new(ids: usize) -> io::Result<Self> {
        let folder = Self(tempfile::Builder::new().prefix("ntl-mistralrs-").tempdir()?);
        folder.write("tokenizer.json", &tokenizer(ids))?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, content: &Value) -> io::Result<()> {
        std::fs::write(self.path().join(name), content.to_string())
    }

    pub(crate) fn link(&self, name: &str, target: &Path) -> io::Result<()> {
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

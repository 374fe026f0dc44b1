//! The metadata in the header of a GGUF file, by field.

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};
use ntl_text::checkpoint::LoadError;

pub(crate) struct GgufFile {
    /// The path, for error messages.
    pub(crate) place: String,
    pub(crate) content: Content,
}

impl GgufFile {
    pub(crate) fn open(file: &Path) -> Result<Self, LoadError> {
        let place = file.display().to_string();
        let mut opened =
            File::open(file).map_err(|source| LoadError::Read { file: place.clone(), source })?;
        let content = Content::read(&mut opened).map_err(|error| LoadError::malformed(&place, error))?;
        Ok(Self { place, content })
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.content.metadata.get(name)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_string().ok().map(String::as_str)
    }

    /// Returns a count or an id, which may be stored with any width.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        let value = self.get(name)?;
        value.to_u32().ok().or_else(|| u32::try_from(value.to_u64().ok()?).ok())
    }

    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)?.to_bool().ok()
    }

    /// Returns a list, or `None` if `read` rejects any of its values.
    pub(crate) fn list<T>(&self, name: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
        self.get(name)?.to_vec().ok()?.iter().map(read).collect()
    }

    pub(crate) fn texts(&self, name: &str) -> Option<Vec<String>> {
        self.list(name, |value| value.to_string().ok().cloned())
    }

    /// Returns the error for a missing or unsupported field.
    pub(crate) fn refuse(&self, name: &str, reason: &str) -> LoadError {
        LoadError::field(&self.place, name, reason)
    }
}

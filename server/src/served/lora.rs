//! LoRA adapters: each is a served model with its own name, which its base model's engine computes.
//!
//! In: directories in PEFT's format. An adapter is read for the base model that it names, within the memory
//! of `--adapter-bytes-max`. Requests keep the adapter with which they began, so adapters come and go while
//! requests run. Not here: the routes (`routes::lora`) and SIGHUP (`reload`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ntl_core::contract::{Adapter, EngineError};
use ntl_text::checkpoint::{CheckpointFiles, LoadError};

use crate::hub::Directory;
use crate::native::{AdapterReader, adapter_base};

/// Why an adapter is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    #[error("no model that is computed here can have adapters")]
    NoBase,
    #[error(
        "several models are served, and field `base_model_name_or_path` of its adapter_config.json names none of them; it is \
         {}, the models are `{}`",
        .stated.as_ref().map_or("missing".to_owned(), |stated| format!("`{stated}`")),
        .models.join("`, `")
    )]
    UnknownBase { stated: Option<String>, models: Vec<String> },
    #[error(
        "its weights need {needs} bytes; of the {max} bytes for adapters (--adapter-bytes-max), {used} are in use"
    )]
    NoMemory { needs: u64, used: u64, max: u64 },
    #[error("the model cannot use it: {0}")]
    Engine(#[from] EngineError),
    #[error("{}", chain(.0))]
    Load(#[from] LoadError),
}

/// An error with its causes on one line.
fn chain(error: &LoadError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The memory of all adapters. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct AdapterMemory {
    bytes_max: u64,
    used: Arc<AtomicU64>,
}

/// Memory of one adapter, which is released when this is dropped.
#[derive(Debug)]
struct Held {
    bytes: u64,
    used: Arc<AtomicU64>,
}

/// The weights of an adapter that was read from a directory.
#[derive(Debug, Clone)]
pub(crate) struct LoraWeights {
    pub(crate) adapter: Adapter,
    pub(crate) folder: AdapterFolder,
    pub(crate) fingerprint: String,
}

/// The directory of an adapter.
#[derive(Debug, Clone)]
pub(crate) enum AdapterFolder {
    /// Named by the configuration. Its links may change.
    Configured(Directory),
    /// Named by a request and checked. Its path has no links, and one that is put there later is not
    /// followed.
    Checked(PathBuf),
}

impl AdapterFolder {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Configured(Directory { path, .. }) | Self::Checked(path) => path,
        }
    }

    /// The commit of its repository, if it is from the hub.
    pub(crate) fn commit(&self) -> Option<&str> {
        match self {
            Self::Configured(directory) => directory.commit.as_deref(),
            Self::Checked(_) => None,
        }
    }
}

/// The base model of an adapter, and the adapter.
pub(crate) struct ReadAdapter {
    pub(crate) base: String,
    pub(crate) weights: LoraWeights,
}

impl AdapterMemory {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used: Arc::default() }
    }

    fn hold(&self, bytes: u64) -> Result<Held, AdapterError> {
        let max = self.bytes_max;
        let update = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= max)
        });
        match update {
            Ok(_) => Ok(Held { bytes, used: Arc::clone(&self.used) }),
            Err(used) => Err(AdapterError::NoMemory { needs: bytes, used, max }),
        }
    }

    /// Reads the adapter of a directory for one of these models, by name.
    pub(crate) fn read(
        &self,
        folder: &AdapterFolder,
        models: &[(&str, &AdapterReader)],
    ) -> Result<ReadAdapter, AdapterError> {
        let files = adapter_files(folder)?;
        let (base, reader) = base_of(adapter_base(&files)?, models)?;
        let fingerprint = files.fingerprint()?;
        let open = reader.open(&files)?;
        let held = self.hold(open.bytes())?;
        let adapter = open.read()?.keeping(held);
        Ok(ReadAdapter {
            base: base.to_owned(),
            weights: LoraWeights { adapter, folder: folder.clone(), fingerprint },
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// Opens the directory of an adapter.
pub(crate) fn adapter_files(folder: &AdapterFolder) -> Result<CheckpointFiles, LoadError> {
    match folder {
        AdapterFolder::Configured(Directory { path, .. }) => {
            CheckpointFiles::folder(path).map_err(|error| match error {
                LoadError::NoFolder(folder) => LoadError::NoAdapterFolder(folder),
                other => other,
            })
        }
        AdapterFolder::Checked(path) => Ok(CheckpointFiles::resolved_folder(path)),
    }
}

/// Returns the only model, or the one with the stated name. A stated directory or repository has the name of
/// its last part.
fn base_of<'a, R>(
    stated: Option<String>,
    models: &[(&'a str, &'a R)],
) -> Result<(&'a str, &'a R), AdapterError> {
    match models {
        [] => return Err(AdapterError::NoBase),
        [only] => return Ok(*only),
        _ => {}
    }
    if let Some(stated) = stated.as_deref() {
        let exact = models.iter().find(|(name, _)| *name == stated);
        let base = exact.or_else(|| models.iter().find(|(name, _)| last_part(name) == last_part(stated)));
        if let Some(base) = base {
            return Ok(*base);
        }
    }
    let models = models.iter().map(|(name, _)| (*name).to_owned()).collect();
    Err(AdapterError::UnknownBase { stated, models })
}

fn last_part(name: &str) -> Option<&str> {
    name.trim_end_matches('/').rsplit('/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_for_the_only_model_or_for_the_one_that_its_configuration_names() {
        let base = |stated: Option<&str>, models: &[&'static str]| {
            let models: Vec<(&str, &())> = models.iter().map(|name| (*name, &())).collect();
            base_of(stated.map(str::to_owned), &models)
                .map(|(name, _)| name)
                .map_err(|error| error.to_string())
        };
        assert_eq!(base(Some("/elsewhere/x"), &["a"]), Ok("a"));
        assert_eq!(base(None, &["a"]), Ok("a"));
        let two = ["org/a", "b"];
        for (stated, want) in [("org/a", "org/a"), ("a", "org/a"), ("/models/b/", "b"), ("other/b", "b")] {
            assert_eq!(base(Some(stated), &two), Ok(want), "{stated}");
        }
        let error = base(Some("c"), &two).unwrap_err();
        assert!(error.ends_with("it is `c`, the models are `org/a`, `b`"), "{error}");
        assert!(base(None, &two).unwrap_err().contains("it is missing"));
        assert!(base(None, &[]).is_err());
    }

    #[test]
    fn memory_is_held_until_the_weights_are_dropped() {
        let memory = AdapterMemory::new(100);
        let held = memory.hold(60).unwrap();
        let error = memory.hold(41).unwrap_err().to_string();
        assert_eq!(
            error,
            "its weights need 41 bytes; of the 100 bytes for adapters (--adapter-bytes-max), 60 are in use"
        );
        let adapter = Adapter::new(5).keeping(held);
        let job = adapter.clone();
        drop(adapter);
        assert!(memory.hold(41).is_err());
        drop(job);
        assert!(memory.hold(100).is_ok());
    }
}

//! The served models: each an engine thread with its tokenizer, and the events of the jobs that it runs.
//!
//! In: loaded checkpoints, later validated requests. Out: `RequestEvents`. Not here: how checkpoints are
//! loaded (`serve`) and how answers are written (`answer`, `adapters`).

mod engine;
mod events;
mod lora;
mod model;

use std::sync::{Arc, PoisonError, RwLock};

use crate::error::{AppError, ModelNotFound};
use crate::settings::HttpSettings;

pub(crate) use engine::RemoteTexts;
pub(crate) use events::RequestEvents;
pub use lora::AdapterError;
pub(crate) use lora::{AdapterFolder, AdapterMemory, LoraWeights, ReadAdapter, adapter_files};
pub use model::ServedModel;

/// Another model has the name of an adapter.
#[derive(Debug)]
pub(crate) struct NameTaken;

/// All models of a server; empty until they are loaded.
pub struct Models {
    loaded: RwLock<Option<Arc<[Arc<ServedModel>]>>>,
    /// The server's limits for all models.
    output_tokens_max: u64,
    logprobs_max: Option<usize>,
    adapter_memory: AdapterMemory,
}

impl Models {
    pub(crate) fn new(settings: &HttpSettings) -> Self {
        let HttpSettings { output_tokens_max, logprobs_max, adapter_bytes_max, .. } = *settings;
        let adapter_memory = AdapterMemory::new(adapter_bytes_max);
        Self { loaded: RwLock::default(), output_tokens_max, logprobs_max, adapter_memory }
    }

    /// Serves these models from now on, within the limits of the server. Only the first call counts.
    pub fn publish(&self, models: Vec<ServedModel>) {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        if loaded.is_some() {
            tracing::error!("models were published twice");
            return;
        }
        let models = models.into_iter();
        let models = models.map(|model| Arc::new(model.limited(self.output_tokens_max, self.logprobs_max)));
        *loaded = Some(models.collect());
    }

    pub fn are_loaded(&self) -> bool {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The models in the order of the command line, each adapter after all models without one.
    pub(crate) fn all(&self) -> Arc<[Arc<ServedModel>]> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Changes the list of models. Requests that are running keep their models.
    fn change<T, E>(&self, change: impl FnOnce(&mut Vec<Arc<ServedModel>>) -> Result<T, E>) -> Result<T, E> {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let mut models = loaded.as_ref().map_or_else(Vec::new, |models| models.to_vec());
        let result = change(&mut models)?;
        *loaded = Some(models.into());
        Ok(result)
    }

    pub(crate) fn adapter_memory(&self) -> &AdapterMemory {
        &self.adapter_memory
    }

    /// Reads the adapter of a directory for one of these models. Metrics about its requests have this label,
    /// or its base model's.
    pub(crate) fn adapted(
        &self,
        name: &str,
        label: Option<&Arc<str>>,
        folder: &AdapterFolder,
    ) -> Result<ServedModel, AdapterError> {
        let all = self.all();
        let readers = all.iter().filter_map(|model| Some((&*model.name, model.adapters.as_ref()?)));
        let ReadAdapter { base, weights } = self.adapter_memory.read(folder, &readers.collect::<Vec<_>>())?;
        let base = all.iter().find(|model| *model.name == *base).ok_or(AdapterError::NoBase)?;
        base.adapted(name, label.unwrap_or(&base.label), weights)
    }

    /// Replaces an adapter by what its directory has become. Returns `false` if it is no longer served.
    pub(crate) fn replace_adapter(&self, old: &ServedModel, new: ServedModel) -> bool {
        let replaced = self.change(|models| {
            let model = models.iter_mut().find(|model| std::ptr::eq(&***model, old)).ok_or(())?;
            *model = Arc::new(new);
            Ok::<_, ()>(())
        });
        replaced.is_ok()
    }

    /// Serves another adapter. In place of one with the same name, if `replaces`.
    pub(crate) fn add_adapter(&self, model: ServedModel, replaces: bool) -> Result<(), NameTaken> {
        self.change(|models| {
            let same = models.iter_mut().find(|other| other.name == model.name);
            match same {
                Some(other) if replaces && other.lora.is_some() => *other = Arc::new(model),
                Some(_) => return Err(NameTaken),
                None => models.push(Arc::new(model)),
            }
            Ok(())
        })
    }

    /// Stops serving an adapter. Returns `false` if no adapter has this name.
    pub(crate) fn remove_adapter(&self, name: &str) -> bool {
        let removed = self.change(|models| {
            let index =
                models.iter().position(|model| *model.name == *name && model.lora.is_some()).ok_or(())?;
            Ok::<_, ()>(models.remove(index))
        });
        removed.is_ok()
    }

    /// The model that a request names. The name may be missing or empty if only one model without an adapter
    /// is served.
    pub(crate) fn resolve(&self, name: Option<&str>) -> Result<Arc<ServedModel>, AppError> {
        let all = self.all();
        let name = name.unwrap_or_default();
        if !name.is_empty() {
            return Ok(all.iter().find(|model| *model.name == *name).cloned().ok_or_else(|| {
                let served = all.iter().map(|model| model.name.to_string()).collect();
                ModelNotFound { name: name.to_owned(), served }
            })?);
        }
        let mut bases = all.iter().filter(|model| model.lora.is_none());
        match (bases.next(), bases.next()) {
            (Some(only), None) => Ok(Arc::clone(only)),
            _ => {
                let names: Vec<&str> = all.iter().map(|model| &*model.name).collect();
                let message = format!("`model` is missing: several models are served ({})", names.join(", "));
                Err(AppError::invalid("model", message))
            }
        }
    }
}

//! The served models: each an engine thread with its tokenizer, and the events of the jobs that it runs.
//!
//! In: loaded checkpoints, later validated requests. Out: `RequestEvents`. Not here: how checkpoints are
//! loaded (`serve`) and how answers are written (`answer`, `adapters`).

mod engine;
mod events;
mod model;

use std::sync::{Arc, OnceLock};

use crate::error::{AppError, ModelNotFound};
use crate::settings::HttpSettings;

pub(crate) use events::RequestEvents;
pub use model::ServedModel;

/// All models of a server; empty until they are loaded.
pub struct Models {
    loaded: OnceLock<Vec<Arc<ServedModel>>>,
    /// The server's limits for all models.
    output_tokens_max: u64,
    logprobs_max: Option<usize>,
}

impl Models {
    pub(crate) fn new(settings: &HttpSettings) -> Self {
        let HttpSettings { output_tokens_max, logprobs_max, .. } = *settings;
        Self { loaded: OnceLock::new(), output_tokens_max, logprobs_max }
    }

    /// Serves these models from now on, within the limits of the server. Only the first call counts.
    pub fn publish(&self, models: Vec<ServedModel>) {
        let limited = |model: ServedModel| Arc::new(model.limited(self.output_tokens_max, self.logprobs_max));
        if self.loaded.set(models.into_iter().map(limited).collect()).is_err() {
            tracing::error!("models were published twice");
        }
    }

    pub fn are_loaded(&self) -> bool {
        self.loaded.get().is_some()
    }

    /// The models in the order of the command line.
    pub(crate) fn all(&self) -> &[Arc<ServedModel>] {
        self.loaded.get().map_or(&[], Vec::as_slice)
    }

    /// The model that a request names. The name may be missing or empty if only one model is served.
    pub(crate) fn resolve(&self, name: Option<&str>) -> Result<Arc<ServedModel>, AppError> {
        let model = match (name.unwrap_or_default(), self.all()) {
            ("", [only]) => Some(only),
            ("", all) => {
                let names: Vec<&str> = all.iter().map(|model| &*model.name).collect();
                let message = format!("`model` is missing: several models are served ({})", names.join(", "));
                return Err(AppError::invalid("model", message));
            }
            (name, all) => all.iter().find(|model| *model.name == *name),
        };
        let not_found = || {
            let served = self.all().iter().map(|model| model.name.to_string()).collect();
            ModelNotFound { name: name.unwrap_or_default().to_owned(), served }
        };
        Ok(model.map(Arc::clone).ok_or_else(not_found)?)
    }
}

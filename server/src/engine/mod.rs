//! The served models: each an engine thread with its tokenizer, and the events of the jobs that it runs.
//!
//! In: loaded checkpoints, later validated requests. Out: `RequestEvents`. Not here: how checkpoints are loaded
//! (`serve`) and how answers are written (`answer`, `adapters`).

mod events;
mod model;

use std::sync::{Arc, OnceLock};

use crate::error::AppError;

pub(crate) use events::RequestEvents;
pub use model::ServedModel;
pub(crate) use model::Submission;

/// All models of a server; empty until they are loaded.
#[derive(Default)]
pub struct Models(OnceLock<Vec<Arc<ServedModel>>>);

impl Models {
    /// Serves these models from now on. Only the first call counts.
    pub fn publish(&self, models: Vec<ServedModel>) {
        if self.0.set(models.into_iter().map(Arc::new).collect()).is_err() {
            tracing::error!("models were published twice");
        }
    }

    pub fn are_loaded(&self) -> bool {
        self.0.get().is_some()
    }

    /// The models in the order of the command line.
    pub(crate) fn all(&self) -> &[Arc<ServedModel>] {
        self.0.get().map_or(&[], Vec::as_slice)
    }

    /// The model that a request names. The name may be missing or empty where only one model is served.
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
        model.map(Arc::clone).ok_or(AppError::ModelNotFound)
    }
}

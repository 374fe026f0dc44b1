//! The handlers. Each reads a request with an adapter, runs it on a model, and writes the answer with the adapter.

mod body;
pub(crate) mod chat;
mod client;
pub(crate) mod completions;
pub(crate) mod docs;
mod generation;
pub(crate) mod models;
pub(crate) mod ops;
mod piece;
pub(crate) mod playground;
pub(crate) mod score;
mod stream;
pub(crate) mod tokens;

use std::sync::Arc;

use crate::engine::ServedModel;
use crate::error::AppError;
use crate::middleware::track::ModelLabel;
use crate::state::AppState;

/// The model that a request names; the metrics learn it, too.
fn resolve(app: &AppState, name: Option<&str>, label: &ModelLabel) -> Result<Arc<ServedModel>, AppError> {
    let model = app.models.resolve(name);
    match &model {
        Ok(model) => label.known(&model.name),
        Err(AppError::ModelNotFound) => label.unknown(),
        Err(_) => {}
    }
    model
}

//! The handlers. Each reads a request of one of the `apis`, runs it on a model, and writes the response in
//! the form of that API.

mod body;
pub(crate) mod chat;
pub(crate) mod classify;
mod client;
pub(crate) mod completions;
mod content_coding;
pub(crate) mod decisions;
pub(crate) mod docs;
pub(crate) mod embeddings;
mod forward;
mod generation;
pub(crate) mod labels;
pub(crate) mod lora;
pub(crate) mod models;
pub(crate) mod ops;
mod pieces;
pub(crate) mod playground;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod score;
mod stream;
pub(crate) mod tokens;
mod usage_reader;

use std::sync::Arc;

use crate::error::AppError;
use crate::request::RequestRecord;
use crate::served::ServedModel;
use crate::state::AppState;

/// Returns the model that a request names, and records it for the metrics, the log and the headers of the
/// response.
fn resolve(app: &AppState, name: Option<&str>, record: &RequestRecord) -> Result<Arc<ServedModel>, AppError> {
    let model = app.models.resolve(name);
    match &model {
        Ok(model) => record.set_model(&model.name, &model.label, model.fingerprint()),
        Err(AppError::ModelNotFound(_)) => record.set_unknown_model(),
        Err(_) => {}
    }
    model
}

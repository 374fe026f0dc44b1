//! What operators ask: health, metrics and version.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use ntl_api::Version;
use ntl_core::engine::EngineError;
use serde_json::{Value, json};

use crate::error::AppError;
use crate::metrics::TEXT_FORMAT;
use crate::state::AppState;

/// The process is up.
pub(crate) async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Requests are answered: the models are loaded, their engines run, and the server is not about to end.
pub(crate) async fn ready(State(app): State<AppState>) -> Result<Json<Value>, AppError> {
    if app.lifecycle.is_draining() {
        return Err(AppError::Draining);
    }
    if !app.models.are_loaded() {
        return Err(AppError::Loading);
    }
    if !app.models.all().iter().all(|model| model.is_alive()) {
        return Err(EngineError::Dead.into());
    }
    Ok(Json(json!({"status": "ok"})))
}

/// All metrics in the text format.
pub(crate) async fn metrics(State(app): State<AppState>) -> Result<impl IntoResponse, AppError> {
    for model in app.models.all() {
        model.is_alive();
    }
    let text = app.metrics.text().map_err(|error| {
        tracing::error!(%error, "metrics could not be written");
        AppError::Internal
    })?;
    Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], text))
}

/// What is running.
pub(crate) async fn version(State(app): State<AppState>) -> Json<Version> {
    let features = if cfg!(feature = "cuda") { vec!["cuda".to_owned()] } else { Vec::new() };
    Json(Version {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: crate::VERSION.to_owned(),
        commit: crate::COMMIT.to_owned(),
        features,
        device: app.settings.device.clone(),
    })
}

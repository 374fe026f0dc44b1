//! Which requests reach the routes that do work: those with an API key, while models are loaded, the server
//! is not draining and there is memory left. `app` decides which routes are checked.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::error::AppError;
use crate::state::AppState;

/// Passes requests that carry an API key, which is an extension of the request from here on.
pub(crate) async fn check_key(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Result<Response, AppError> {
    let keys = &app.settings.api_keys;
    if !keys.is_empty() {
        let key = keys.matched(request.headers()).ok_or(AppError::Unauthorized)?;
        request.extensions_mut().insert(key);
    }
    Ok(next.run(request).await)
}

/// Passes requests while models are loaded, the server is not draining and there is memory left. A request
/// that is alone passes without: refusing it would free nothing.
pub(crate) async fn admit(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, AppError> {
    if app.lifecycle.is_draining() {
        return Err(AppError::Draining);
    }
    if !app.models.are_loaded() {
        return Err(AppError::Loading);
    }
    let is_alone = app.lifecycle.in_flight() <= 1;
    if !is_alone && app.memory.is_full() {
        return Err(AppError::MemoryFull);
    }
    Ok(next.run(request).await)
}

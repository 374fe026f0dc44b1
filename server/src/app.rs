//! The router: which path leads to which handler, through which layers.
//!
//! From the outside in: counting, panics, then for routes that do work the API key, the admission (loaded, not
//! draining) and the size of the body.

use std::any::Any;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, http};
use tower_http::catch_panic::CatchPanicLayer;

use crate::error::AppError;
use crate::routes::{self, chat, completions, models, ops, score, tokens};
use crate::state::AppState;
use crate::{auth, track};

/// All routes of the server.
pub fn router(app: AppState) -> Router {
    let work = Router::new()
        .route(routes::CHAT, post(chat::complete))
        .route(routes::COMPLETIONS, post(completions::complete))
        .route(routes::SCORE, post(score::score))
        .route(routes::MODELS, get(models::list))
        .route(routes::MODEL, get(models::one))
        .route(routes::TOKENIZE, post(tokens::tokenize))
        .route(routes::DETOKENIZE, post(tokens::detokenize))
        .route_layer(DefaultBodyLimit::max(app.settings.body_bytes_max))
        .route_layer(middleware::from_fn_with_state(app.clone(), admit))
        .route(routes::VERSION, get(ops::version))
        .route_layer(middleware::from_fn_with_state(app.clone(), auth::check));
    let public = Router::new()
        .route(routes::HEALTH_LIVE, get(ops::live))
        .route(routes::HEALTH_READY, get(ops::ready))
        .route(routes::HEALTH, get(ops::ready))
        .route(routes::METRICS, get(ops::metrics));
    let panics = app.metrics.panics.clone();
    let answer_panic = move |_: Box<dyn Any + Send>| -> http::Response<axum::body::Body> {
        // The default hook has logged the panic already.
        panics.inc();
        AppError::Internal.into_response()
    };
    work.merge(public)
        .fallback(async || AppError::RouteNotFound)
        .method_not_allowed_fallback(async || AppError::MethodNotAllowed)
        .layer(CatchPanicLayer::custom(answer_panic))
        .layer(middleware::from_fn_with_state(app.clone(), track::track))
        .with_state(app)
}

/// Lets requests pass while models are loaded and the server is not about to end.
async fn admit(State(app): State<AppState>, request: Request, next: Next) -> Result<Response, AppError> {
    if app.lifecycle.is_draining() {
        return Err(AppError::Draining);
    }
    if !app.models.are_loaded() {
        return Err(AppError::Loading);
    }
    Ok(next.run(request).await)
}

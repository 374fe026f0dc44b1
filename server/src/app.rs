//! The router: which path leads to which handler, through which layers.
//!
//! From the outside in: names of requests, counting, other origins, panics, then for routes that do work the API key,
//! the admission (loaded, not draining) and the size of the body. Routes are added with their description
//! (`routes!`), so that `GET /openapi.json` cannot miss one.

use std::any::Any;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, http};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::AppError;
use crate::routes::{chat, completions, docs, models, ops, score, tokens};
use crate::state::AppState;
use crate::{auth, cors, request_id, track};

/// All routes of the server.
pub fn router(app: AppState) -> Router {
    let work = work()
        .route_layer(DefaultBodyLimit::max(app.settings.body_bytes_max))
        .route_layer(middleware::from_fn_with_state(app.clone(), admit))
        .merge(guarded())
        .route_layer(middleware::from_fn_with_state(app.clone(), auth::check));
    let panics = app.metrics.panics.clone();
    let answer_panic = move |_: Box<dyn Any + Send>| -> http::Response<axum::body::Body> {
        // The default hook has logged the panic already.
        panics.inc();
        AppError::Internal.into_response()
    };
    let (router, _) = work.merge(public()).split_for_parts();
    router
        .fallback(async || AppError::RouteNotFound)
        .method_not_allowed_fallback(async || AppError::MethodNotAllowed)
        .layer(CatchPanicLayer::custom(answer_panic))
        .layer(cors::layer(&app.settings.cors_origins))
        .layer(middleware::from_fn_with_state(app.clone(), track::track))
        .layer(middleware::from_fn(request_id::name))
        .with_state(app)
}

/// What the routes say about themselves.
pub(crate) fn described() -> OpenApi {
    work().merge(guarded()).merge(public()).into_openapi()
}

/// Routes that do work: they need a key, loaded models, and a server that goes on.
fn work() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(completions::complete))
        .routes(routes!(chat::complete))
        .routes(routes!(score::score))
        .routes(routes!(models::list))
        .routes(routes!(models::one))
        .routes(routes!(tokens::tokenize))
        .routes(routes!(tokens::detokenize))
        .routes(routes!(tokens::info))
}

/// Routes that need a key.
fn guarded() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(ops::version))
}

/// Routes that are open to everyone.
fn public() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(ops::live))
        .routes(routes!(ops::ready))
        .routes(routes!(ops::health))
        .routes(routes!(ops::metrics))
        .routes(routes!(docs::description))
        .routes(routes!(docs::page))
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

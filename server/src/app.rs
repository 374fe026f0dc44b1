//! The router: which path leads to which handler, through which layers.
//!
//! From the outside in: request ids, addresses of clients behind proxies, counting, the name of the server,
//! cross-origin rules, panics. Routes that do work also check the API key, admission (loaded, not draining,
//! memory left) and the quota of the key. Routes are added with their description (`routes!`), so the OpenAPI
//! description cannot miss one.

use std::any::Any;
use std::sync::LazyLock;

use axum::response::IntoResponse;
use axum::{Extension, Router, middleware};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{PropagateRequestIdLayer, SetRequestIdLayer};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::AppError;
use crate::middleware::{admission, cors, forwarded, host, quota, request_id, system_one_errors, track};
use crate::openapi::{self, ApiKeyUse};
use crate::routes::docs::Description;
use crate::routes::{
    chat, classify, completions, decisions, docs, embeddings, labels, lora, models, ops, playground, rerank,
    responses, score, tokens,
};
use crate::state::AppState;

pub fn router(app: AppState) -> Router {
    let check_key = middleware::from_fn_with_state(app.clone(), admission::check_key);
    let admit = middleware::from_fn_with_state(app.clone(), admission::admit);
    let check_quota = middleware::from_fn_with_state(app.clone(), quota::check);
    let work = work().route_layer((check_key.clone(), admit, check_quota));
    let guarded = guarded().route_layer(check_key);
    let metrics = if app.settings.metrics_on_admin_only { OpenApiRouter::new() } else { metrics() };
    layered(work.merge(guarded).merge(public()).merge(metrics).merge(playground()), app)
}

/// Health, metrics and documentation, for operators, and adapters if they may be loaded.
pub fn admin_router(app: AppState) -> Router {
    let operators = public().merge(metrics());
    if app.settings.adapters_from.is_none() {
        return layered(operators, app);
    }
    let check_key = middleware::from_fn_with_state(app.clone(), admission::check_key);
    let admit = middleware::from_fn_with_state(app.clone(), admission::admit);
    layered(operators.merge(adapters().route_layer((check_key, admit))), app)
}

fn layered(routes: OpenApiRouter<AppState>, app: AppState) -> Router {
    let panics = app.metrics.ntl_panics_total.clone();
    let (router, _) = routes.split_for_parts();
    let description = if app.settings.api_keys.is_empty() { openapi_json_without_keys } else { openapi_json };
    // As one layer: the router copies and boxes what lies within each of its layers for every request.
    let layers = ServiceBuilder::new()
        .layer(middleware::map_request(request_id::drop_unusable))
        .layer(SetRequestIdLayer::new(request_id::HEADER, request_id::MakeId))
        .layer(PropagateRequestIdLayer::new(request_id::HEADER))
        .layer(middleware::map_request_with_state(app.clone(), forwarded::resolve))
        .layer(middleware::from_fn_with_state(app.clone(), track::track))
        .layer(middleware::from_fn(system_one_errors::rewrite))
        .layer(middleware::from_fn_with_state(app.clone(), host::check))
        .option_layer(cors::layer(&app.settings.cors_origins))
        .layer(CatchPanicLayer::custom(move |_: Box<dyn Any + Send>| {
            // The default hook has logged the panic already.
            panics.inc();
            AppError::Internal.into_response()
        }))
        .layer(Extension(Description(description)));
    router
        .fallback(async || AppError::RouteNotFound)
        .method_not_allowed_fallback(async || AppError::MethodNotAllowed)
        .layer(layers)
        .with_state(app)
}

/// The OpenAPI description of all routes of a server with API keys, with a line break at its end.
pub fn openapi_json() -> &'static str {
    static JSON: LazyLock<String> = LazyLock::new(|| openapi::json(all_routes(), ApiKeyUse::Required));
    &JSON
}

/// The same for a server without API keys.
fn openapi_json_without_keys() -> &'static str {
    static JSON: LazyLock<String> = LazyLock::new(|| openapi::json(all_routes(), ApiKeyUse::NotChecked));
    &JSON
}

fn all_routes() -> OpenApi {
    work().merge(guarded()).merge(public()).merge(metrics()).merge(playground()).into_openapi()
}

/// Routes that do work: they need a key, loaded models, and a server that is not draining.
fn work() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(completions::complete))
        .routes(routes!(chat::complete))
        .routes(routes!(responses::respond))
        .routes(routes!(decisions::decide))
        .routes(routes!(decisions::system_one))
        .routes(routes!(score::score))
        .routes(routes!(classify::classify))
        .routes(routes!(classify::pool))
        .routes(routes!(embeddings::embed))
        .routes(routes!(labels::generative_scoring))
        .routes(routes!(classify::predict_labels))
        .routes(routes!(rerank::rerank))
        .routes(routes!(rerank::rerank_v1))
        .routes(routes!(models::list))
        .routes(routes!(models::one))
        .routes(routes!(tokens::tokenize))
        .routes(routes!(tokens::detokenize))
        .routes(routes!(tokens::info))
}

/// Routes that load and unload adapters. The description leaves them out, because they are not on the port of
/// the API.
fn adapters() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(lora::load)).routes(routes!(lora::unload))
}

/// Routes that need a key.
fn guarded() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(ops::version))
}

/// Routes without a key.
fn public() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(ops::live))
        .routes(routes!(ops::ready))
        .routes(routes!(ops::health))
        .routes(routes!(ops::ping))
        .routes(routes!(ops::load))
        .routes(routes!(ops::server_load))
        .routes(routes!(docs::description))
        .routes(routes!(docs::page))
}

fn metrics() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(ops::metrics))
}

/// The page without a key; what it asks needs one.
fn playground() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(playground::page)).routes(routes!(playground::file))
}

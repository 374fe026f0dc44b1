//! Routes for operators and routers: health, load, metrics and version.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use ntl_api::{ErrorBody, Health, Load, ServerLoad, Version};
use ntl_core::contract::EngineError;

use crate::error::AppError;
use crate::metrics::Format;
use crate::paths::{HEALTH, HEALTH_LIVE, HEALTH_READY, LOAD, METRICS, PING, SERVER_LOAD, VERSION};
use crate::state::AppState;

/// The process is up and need not be restarted.
#[utoipa::path(get, path = HEALTH_LIVE, tag = "operations", responses(
    (status = 200, description = "The process is up", body = Health),
    (status = 503, description = "An engine died; the process ends", body = ErrorBody),
))]
pub(crate) async fn live(State(app): State<AppState>) -> Result<Json<Health>, AppError> {
    app.models.all().iter().try_for_each(|model| model.check_alive())?;
    Ok(Json(Health::ok()))
}

/// The server is ready for requests.
///
/// The models are loaded, their engines run or are reachable, and the server is not shutting down.
#[utoipa::path(get, path = HEALTH_READY, tag = "operations", responses(
    (status = 200, description = "Ready for requests", body = Health),
    (status = 503, description = "Loading, draining, or an engine died or is unreachable", body = ErrorBody),
))]
pub(crate) async fn ready(State(app): State<AppState>) -> Result<Json<Health>, AppError> {
    if app.lifecycle.is_ending() {
        return Err(AppError::Draining);
    }
    if !app.models.are_loaded() {
        return Err(AppError::Loading);
    }
    for model in app.models.all().iter() {
        model.check_alive()?;
        if !model.is_ready() {
            return Err(EngineError::Dead.into());
        }
    }
    Ok(Json(Health::ok()))
}

/// The same as `/health/ready`.
#[utoipa::path(get, path = HEALTH, tag = "operations", responses(
    (status = 200, description = "Ready for requests", body = Health),
    (status = 503, description = "Loading, draining, or an engine died or is unreachable", body = ErrorBody),
))]
pub(crate) async fn health(app: State<AppState>) -> Result<Json<Health>, AppError> {
    ready(app).await
}

/// The same as `/health/ready`, under the path that SageMaker queries.
#[utoipa::path(get, path = PING, tag = "operations", responses(
    (status = 200, description = "Ready for requests", body = Health),
    (status = 503, description = "Loading, draining, or an engine died or is unreachable", body = ErrorBody),
))]
pub(crate) async fn ping(app: State<AppState>) -> Result<Json<Health>, AppError> {
    ready(app).await
}

/// How many texts and numbers are being decoded, and how many wait.
///
/// Routers query this route before they choose a server.
#[utoipa::path(get, path = LOAD, tag = "operations", responses(
    (status = 200, description = "The load, over all models", body = Load),
))]
pub(crate) async fn load(State(app): State<AppState>) -> Json<Load> {
    let all = app.models.all();
    // The load of a model includes its adapters'.
    let loads = all.iter().filter(|model| model.lora.is_none()).map(|model| model.load());
    let (running, waiting) = loads.fold((0, 0), |sum, load| (sum.0 + load.running, sum.1 + load.waiting));
    Json(Load { running, waiting, load: running + waiting })
}

/// How many requests the server is processing, as vLLM reports it.
#[utoipa::path(get, path = SERVER_LOAD, tag = "operations", responses(
    (status = 200, description = "The load, over all models", body = ServerLoad),
))]
pub(crate) async fn server_load(State(app): State<AppState>) -> Json<ServerLoad> {
    Json(ServerLoad { server_load: app.metrics.ntl_requests_in_flight.get().cast_unsigned() })
}

/// All metrics.
///
/// In the text format of Prometheus, or of OpenMetrics if `Accept` prefers it.
#[utoipa::path(get, path = METRICS, tag = "operations", responses(
    (status = 200, description = "The metrics", content(
        (String = "text/plain"),
        (String = "application/openmetrics-text"),
    )),
))]
pub(crate) async fn metrics(
    State(app): State<AppState>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, AppError> {
    for model in app.models.all().iter() {
        model.update_metrics();
    }
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(&accept.collect::<Vec<_>>().join(","));
    let text = app.metrics.text(format, app.settings.metrics_compat).map_err(|error| {
        tracing::error!(%error, "metrics could not be written");
        AppError::Internal
    })?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text))
}

/// Version and build of the server.
#[utoipa::path(get, path = VERSION, tag = "operations", responses(
    (status = 200, description = "Name, version and build", body = Version),
    (status = 401, description = "No valid API key", body = ErrorBody),
))]
pub(crate) async fn version(State(app): State<AppState>) -> Json<Version> {
    Json(Version {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: crate::VERSION.to_owned(),
        commit: crate::COMMIT.to_owned(),
        features: crate::features().map(str::to_owned).collect(),
        device: app.settings.device.clone(),
    })
}

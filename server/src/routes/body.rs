//! Reads a JSON body into a wire type, or says what is wrong with it and where.
//!
//! Errors are 408, 413, 415, or 400. Not here: how JSON is read (`json`), ranges and combinations of fields (`adapters`).

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::blocking::run_blocking;
use crate::error::AppError;
use crate::json::parse;
use crate::listen::InFlightRequest;
use crate::state::AppState;

pub(crate) struct ApiJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Serialize + Send + 'static> FromRequest<AppState> for ApiJson<T> {
    type Rejection = AppError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, AppError> {
        check_media(request.headers())?;
        let settings = &app.settings;
        // While the server waits for the body, the connection may be evicted.
        let _waiting = request.extensions().get().map(InFlightRequest::wait_for_body);
        let body = tokio::time::timeout(settings.body_time_max, Bytes::from_request(request, app)).await;
        let late = |_| AppError::BodyTooSlow { seconds_max: settings.body_time_max.as_secs() };
        let body = body.map_err(late)?.map_err(|rejection| {
            if rejection.into_response().status() == StatusCode::PAYLOAD_TOO_LARGE {
                return AppError::BodyTooLarge { bytes_max: settings.body_bytes_max };
            }
            AppError::Invalid { message: "the body could not be read".to_owned(), param: None }
        })?;
        let value = run_blocking(body.len(), move || parse(&body)).await?;
        if settings.log_prompts {
            // Serialised again, a body is one line, however the client wrote it.
            let body = serde_json::to_string(&value).map_err(|_| AppError::Internal)?;
            tracing::info!(body, "request");
        }
        Ok(Self(value))
    }
}

/// Accepts plain JSON only: other types are refused, and so is a compressed body.
fn check_media(headers: &HeaderMap) -> Result<(), AppError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let content_type = text(header::CONTENT_TYPE).to_ascii_lowercase();
    let essence = content_type.split_once(';').map_or(&*content_type, |(essence, _)| essence).trim();
    let is_json =
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if !is_json {
        return Err(AppError::UnsupportedMedia("the content type must be application/json"));
    }
    if !matches!(text(header::CONTENT_ENCODING).to_ascii_lowercase().as_str(), "" | "identity") {
        return Err(AppError::UnsupportedMedia("compressed bodies are not accepted"));
    }
    Ok(())
}

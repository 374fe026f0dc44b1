//! Reads a JSON body into a wire type, or says what is wrong with it and where.
//!
//! Errors are 408, 413, 415, 503 (too many bodies at once), or 400. A body takes memory of its own size: chunks are copied into
//! one buffer, which is charged to the budget of all bodies. What it becomes is charged to a budget of its own. Not here: how JSON
//! is read (`json`), ranges and combinations of fields (`adapters`).

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures::future::Abortable;
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::blocking::run_blocking;
use crate::body_budget::{BodyCharge, BudgetExhausted};
use crate::error::AppError;
use crate::json::parse;
use crate::listen::InFlightRequest;
use crate::parsed_budget::ParsedShare;
use crate::state::AppState;

/// A request, and its share of the memory of parsed bodies, which is held until its prompts are tokenized.
pub(crate) struct ApiJson<T>(pub(crate) T, pub(crate) ParsedShare);

impl<T: DeserializeOwned + Serialize + Send + 'static> FromRequest<AppState> for ApiJson<T> {
    type Rejection = AppError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, AppError> {
        check_media(request.headers())?;
        let settings = &app.settings;
        let (charge, registration) = app.bodies.begin();
        let body = {
            // While the server waits for the body, the connection may be evicted.
            let _waiting = request.extensions().get().map(InFlightRequest::wait_for_body);
            let reading = read(request.into_body(), settings.body_bytes_max, &charge);
            let reading = Abortable::new(reading, registration);
            let late = |_| AppError::BodyTooSlow { seconds_max: settings.body_time_max.as_secs() };
            let body = tokio::time::timeout(settings.body_time_max, reading).await.map_err(late)?;
            body.map_err(|_| AppError::BodiesFull)??
        };
        charge.complete();
        let (share, body) = app.parsed.share_of(body).await?;
        let value = run_blocking(body.len(), move || {
            let value = parse(&body);
            drop((body, charge));
            value
        })
        .await?;
        if settings.log_prompts {
            // Serialised again, a body is one line, however the client wrote it.
            let body = serde_json::to_string(&value).map_err(|_| AppError::Internal)?;
            tracing::info!(body, "request");
        }
        Ok(Self(value, share))
    }
}

/// Reads a body of at most `bytes_max`. A length that the header states is checked before any byte is read.
async fn read(mut body: Body, bytes_max: usize, charge: &BodyCharge) -> Result<Vec<u8>, AppError> {
    let too_large = || AppError::BodyTooLarge { bytes_max };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let unreadable =
            |_| AppError::Invalid { message: "the body could not be read".to_owned(), param: None };
        let Ok(data) = frame.map_err(unreadable)?.into_data() else { continue };
        let needed = bytes.len() + data.len();
        if needed > bytes_max {
            return Err(too_large());
        }
        if needed > bytes.capacity() {
            let capacity = needed.max(2 * bytes.capacity()).min(bytes_max);
            charge.grow_to(capacity).map_err(|BudgetExhausted| AppError::BodiesFull)?;
            bytes.reserve_exact(capacity - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_in_many_chunks_takes_at_most_twice_its_size() {
        let chunks = futures::stream::iter(vec![Ok::<_, std::convert::Infallible>("x"); 100_000]);
        let (charge, _registration) = crate::body_budget::BodyBudget::new(200_000).begin();
        let bytes = read(Body::from_stream(chunks), 1 << 20, &charge).await.unwrap();
        assert_eq!(bytes.len(), 100_000);
    }
}

//! Reads a request with a JSON body, or returns an error that names the faulty field.
//!
//! Errors have the status 408, 413, 415, 503 (too many concurrent bodies) or 400. A body needs as much memory
//! as its size: chunks are copied into one buffer, which is charged to the budget of all bodies. A compressed
//! body is decompressed before it is parsed, and the limits apply to both sizes. Other modules parse JSON
//! (`json`) and check ranges and combinations of fields (`apis`).

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures::future::{Abortable, Aborted};
use http_body_util::BodyExt;
use ntl_common::printable::shortened;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::client;
use super::content_coding::{ContentCoding, decompress};
use crate::blocking::run_blocking;
use crate::body_budget::BodyCharge;
use crate::error::AppError;
use crate::json::parse;
use crate::listen::InFlightRequest;
use crate::request::{RequestRecord, Requester};
use crate::response_budget::RequestMemory;
use crate::state::AppState;

/// A log line has at most this many characters of a body.
const LOGGED_CHARS_MAX: usize = 10_000;

const UNKNOWN_CODING: AppError =
    AppError::UnsupportedMedia("the content encoding must be one of gzip, deflate, zstd and identity");

/// A request as it was sent.
pub(crate) struct ApiRequest<T> {
    pub(crate) body: T,
    pub(crate) requester: Requester,
    /// Holds the memory of the body until its prompts are tokenized.
    pub(crate) memory: RequestMemory,
}

/// A request whose body has arrived and is not parsed yet.
pub(crate) struct RawRequest {
    body: Vec<u8>,
    charge: BodyCharge,
    log_prompts: bool,
    requester: Requester,
    memory: RequestMemory,
}

impl FromRequest<AppState> for RawRequest {
    type Rejection = AppError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, AppError> {
        let (parts, body) = request.into_parts();
        let coding = check_media(&parts.headers)?;
        let settings = &app.settings;
        let (charge, registration) = app.bodies.begin();
        let body = {
            // While the server waits for the body, the connection may be evicted.
            let _waiting = parts.extensions.get().map(InFlightRequest::wait_for_body);
            let reading = Abortable::new(read(body, settings.body_bytes_max, &charge), registration);
            match tokio::time::timeout(settings.body_time_max, reading).await {
                Ok(Ok(body)) => body?,
                Ok(Err(Aborted)) => return Err(AppError::BodiesFull),
                Err(_) => {
                    return Err(AppError::BodyTooSlow { seconds_max: settings.body_time_max.as_secs() });
                }
            }
        };
        let client = client(app, &parts);
        let (body, charge) = decompress(client.id, body, coding, settings.body_bytes_max, charge).await?;
        let (share, body) = charge.complete(client.id, body).await?;
        let requester = Requester {
            client,
            record: parts.extensions.get::<Arc<RequestRecord>>().cloned().unwrap_or_default(),
            started: Instant::now(),
            time_max: settings.request_time_max,
        };
        let memory = RequestMemory::new(share, &app.responses, requester.client.id);
        Ok(Self { body, charge, log_prompts: settings.log_prompts, requester, memory })
    }
}

impl RawRequest {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.body
    }

    pub(crate) async fn parse<T>(self) -> Result<ApiRequest<T>, AppError>
    where
        T: DeserializeOwned + Serialize + Send + 'static,
    {
        let Self { body, charge, log_prompts, requester, memory } = self;
        let body: T = run_blocking(requester.client.id, body.len(), move || {
            let value = parse(&body);
            drop((body, charge));
            value
        })
        .await?;
        if log_prompts {
            // Serialised again, a body is one line regardless of the client's formatting.
            let body = serde_json::to_string(&body).map_err(|_| AppError::Internal)?;
            tracing::info!(body = &*shortened(&body, LOGGED_CHARS_MAX), "request");
        }
        Ok(ApiRequest { body, requester, memory })
    }
}

impl<T: DeserializeOwned + Serialize + Send + 'static> FromRequest<AppState> for ApiRequest<T> {
    type Rejection = AppError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, AppError> {
        RawRequest::from_request(request, app).await?.parse().await
    }
}

/// Reads a body of at most `bytes_max`. A length that the header states is checked before any byte is read.
async fn read(mut body: Body, bytes_max: usize, charge: &BodyCharge) -> Result<Vec<u8>, AppError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(AppError::BodyTooLarge { bytes_max });
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            let message = "the body could not be read".to_owned();
            return Err(AppError::Invalid { message, param: None });
        };
        let Ok(data) = frame.into_data() else { continue };
        let needed = bytes.len() + data.len();
        if needed > bytes_max {
            return Err(AppError::BodyTooLarge { bytes_max });
        }
        if needed > bytes.capacity() {
            let capacity = needed.max(2 * bytes.capacity()).min(bytes_max);
            charge.grow_to(capacity)?;
            bytes.reserve_exact(capacity - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Rejects media types other than JSON. Returns how the body is compressed.
fn check_media(headers: &HeaderMap) -> Result<ContentCoding, AppError> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
    let essence = content_type.split_once(';').map_or(&*content_type, |(essence, _)| essence).trim();
    let is_json =
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if !is_json {
        return Err(AppError::UnsupportedMedia("the content type must be application/json"));
    }
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(ContentCoding::Identity),
        (Some(only), None) => only.to_str().ok().and_then(ContentCoding::named).ok_or(UNKNOWN_CODING),
        _ => Err(UNKNOWN_CODING),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_in_many_chunks_uses_at_most_twice_its_size() {
        let chunks = futures::stream::iter(vec![Ok::<_, std::convert::Infallible>("x"); 100_000]);
        let (charge, _registration) = crate::body_budget::BodyBudget::new(200_000).begin();
        let bytes = read(Body::from_stream(chunks), 1 << 20, &charge).await.unwrap();
        assert_eq!(bytes.len(), 100_000);
    }
}

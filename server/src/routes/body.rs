//! Reads a JSON body into a wire type, or says what is wrong with it and where.
//!
//! Errors are 408, 413, 415, or 400 with the path of the field. Not here: ranges and combinations of fields
//! (`adapters`).

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::AppError;
use crate::listen::InFlightRequest;
use crate::state::AppState;

pub(crate) struct ApiJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Serialize> FromRequest<AppState> for ApiJson<T> {
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
        let value = parse(&body)?;
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

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, AppError> {
    let not_json = |error: serde_json::Error| AppError::Invalid {
        message: format!("the body is not valid JSON: {error}"),
        param: None,
    };
    // Serde would read a list as the fields of a struct in order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|&first| first != b'{') {
        serde_json::from_slice::<serde::de::IgnoredAny>(body).map_err(not_json)?;
        return Err(AppError::Invalid { message: "the body must be a JSON object".to_owned(), param: None });
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if !error.is_data() {
            return not_json(error);
        }
        let param = (path != ".").then_some(path);
        let field = param.as_deref().map(|path| format!("`{path}`: ")).unwrap_or_default();
        AppError::Invalid { message: format!("{field}{error}"), param }
    })?;
    json.end().map_err(not_json)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use ntl_api::CompletionRequest;

    use super::*;

    #[test]
    fn what_is_wrong_in_a_body_is_found_and_its_field_named() {
        for (body, param, message) in [
            (&b""[..], None, "not valid JSON"),
            (b"{", None, "not valid JSON"),
            (b"{} x", None, "not valid JSON"),
            (b"[1, 2]", None, "must be a JSON object"),
            (b"[1, 2", None, "not valid JSON"),
            (b"null", None, "must be a JSON object"),
            (b"\"x\"", None, "must be a JSON object"),
            (b"{\"prompt\": \"\xff\"}", None, "not valid JSON"),
            (b"{\"prompt\": \"\\ud800\"}", None, "not valid JSON"),
            (b"{\"temperature\": 1e400}", None, "not valid JSON"),
            (b"{\"temperature\": NaN}", None, "not valid JSON"),
            (b"{\"n\": 1.5}", Some("n"), "expected u64"),
            (b"{\"n\": -1}", Some("n"), "expected u64"),
            (b"{\"n\": \"1\"}", Some("n"), "expected u64"),
            (b"{\"n\": 1, \"n\": 2}", None, "duplicate field `n`"),
            (b"{\"seed\": 9223372036854775808}", Some("seed"), "expected i64"),
            (b"{\"prompt\": 5}", Some("prompt"), "a list of token ids"),
            (b"{\"prompt\": [-1]}", Some("prompt"), "a list of token ids"),
            (b"{\"prompt\": [1, \"a\"]}", Some("prompt"), "a list of token ids"),
            (b"{\"stop\": [1]}", Some("stop"), "a list of strings"),
            (
                b"{\"stream_options\": {\"include_usage\": 1}}",
                Some("stream_options.include_usage"),
                "a boolean",
            ),
            (b"{\"number\": 5}", Some("number"), "true, false or an object"),
        ] {
            let text = String::from_utf8_lossy(body);
            let Err(AppError::Invalid { message: got, param: at }) = parse::<CompletionRequest>(body) else {
                panic!("{text} was taken")
            };
            assert_eq!(at.as_deref(), param, "{text}: {got}");
            assert!(got.contains(message), "{text}: {got}");
        }
        let deep = format!("{{\"x\": {}1{}}}", "[".repeat(200), "]".repeat(200));
        assert!(parse::<CompletionRequest>(deep.as_bytes()).is_err());
    }

    #[test]
    fn explicit_nulls_are_defaults() {
        let body = br#"{"prompt": "x", "n": null, "stop": null, "stream_options": null, "number": null, "seed": null}"#;
        assert_eq!(parse::<CompletionRequest>(body).unwrap().n, None);
    }
}

//! Every way a request can fail, and the only table of status codes.
//!
//! In: [`AppError`] from any layer. Out: a status, the JSON error body with all four keys, and where a client should
//! come back later a `Retry-After`. Not here: what was wrong in detail (that is decided where it is found).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ntl_api::{ErrorBody, ErrorDetail};
use ntl_core::engine::EngineError;

/// A request that gets no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    /// The request is wrong.
    #[error("{message}")]
    Invalid {
        /// What is wrong, for a person.
        message: String,
        /// The field at fault.
        param: Option<String>,
    },
    /// No key, or none of ours.
    #[error("a valid API key is needed: send it as `Authorization: Bearer KEY`")]
    Unauthorized,
    /// No model of this name is served.
    #[error("the model does not exist; GET /v1/models lists those that do")]
    ModelNotFound,
    /// No such path.
    #[error("there is nothing at this path")]
    RouteNotFound,
    /// The path takes other methods.
    #[error("this path does not take this method")]
    MethodNotAllowed,
    /// The body is larger than the server takes.
    #[error("the body is larger than {bytes_max} bytes")]
    BodyTooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// The body did not come in time.
    #[error("the body did not arrive within {seconds_max} seconds")]
    BodyTooSlow {
        /// The limit.
        seconds_max: u64,
    },
    /// The body is no plain JSON.
    #[error("{0}")]
    UnsupportedMedia(&'static str),
    /// The models are not loaded yet.
    #[error("the models are being loaded")]
    Loading,
    /// The server ends as soon as its running requests are answered.
    #[error("the server is shutting down")]
    Draining,
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A fault of the server itself.
    #[error("the server failed while answering this request")]
    Internal,
}

/// Why a request was turned away for the server's state rather than its own; the label of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rejection(pub(crate) &'static str);

impl Rejection {
    /// All reasons there are.
    pub(crate) const ALL: [&'static str; 5] =
        ["queue_full", "queue_timeout", "loading", "draining", "engine_dead"];
}

/// One line of the table: status, type and code of the body, seconds to wait before trying again.
struct Line(StatusCode, &'static str, Option<&'static str>, Option<u32>);

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl AppError {
    /// The request is wrong at `param`.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), param: Some(param.into()) }
    }

    /// The error as JSON.
    pub(crate) fn body(&self) -> ErrorBody {
        let Line(_, kind, code, _) = self.line();
        let param = match self {
            Self::Invalid { param, .. } => param.clone(),
            Self::ModelNotFound => Some("model".to_owned()),
            Self::Engine(EngineError::PromptTooLong { .. }) => Some("prompt".to_owned()),
            Self::Engine(EngineError::ContextTooLong { .. }) => Some("max_tokens".to_owned()),
            _ => None,
        };
        let error = ErrorDetail {
            message: self.to_string(),
            kind: kind.to_owned(),
            param,
            code: code.map(str::to_owned),
        };
        ErrorBody { error }
    }

    fn line(&self) -> Line {
        use StatusCode as Status;
        match self {
            Self::Invalid { .. } => Line(Status::BAD_REQUEST, INVALID, None, None),
            Self::Unauthorized => Line(Status::UNAUTHORIZED, INVALID, Some("invalid_api_key"), None),
            Self::ModelNotFound => Line(Status::NOT_FOUND, INVALID, Some("model_not_found"), None),
            Self::RouteNotFound => Line(Status::NOT_FOUND, INVALID, Some("route_not_found"), None),
            Self::MethodNotAllowed => {
                Line(Status::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"), None)
            }
            Self::BodyTooLarge { .. } => {
                Line(Status::PAYLOAD_TOO_LARGE, INVALID, Some("body_too_large"), None)
            }
            Self::BodyTooSlow { .. } => Line(Status::REQUEST_TIMEOUT, INVALID, Some("body_too_slow"), None),
            Self::UnsupportedMedia(_) => {
                Line(Status::UNSUPPORTED_MEDIA_TYPE, INVALID, Some("unsupported_media_type"), None)
            }
            Self::Loading => Line(Status::SERVICE_UNAVAILABLE, SERVER, Some("loading"), Some(2)),
            Self::Draining => Line(Status::SERVICE_UNAVAILABLE, SERVER, Some("draining"), Some(5)),
            Self::Engine(error) => engine_line(error),
            Self::Internal => Line(Status::INTERNAL_SERVER_ERROR, SERVER, Some("internal_error"), None),
        }
    }
}

fn engine_line(error: &EngineError) -> Line {
    use StatusCode as Status;
    match error {
        EngineError::PromptTooLong { .. } | EngineError::ContextTooLong { .. } => {
            Line(Status::BAD_REQUEST, INVALID, Some("context_length_exceeded"), None)
        }
        EngineError::Overloaded { .. } => {
            Line(Status::TOO_MANY_REQUESTS, "overloaded_error", Some("queue_full"), Some(1))
        }
        EngineError::QueueTimeout { .. } => {
            Line(Status::SERVICE_UNAVAILABLE, "overloaded_error", Some("queue_timeout"), Some(5))
        }
        EngineError::TooLarge { .. } => Line(Status::BAD_REQUEST, INVALID, Some("request_too_large"), None),
        EngineError::Guide(_) => Line(Status::BAD_REQUEST, INVALID, Some("guide_failed"), None),
        EngineError::Dead => Line(Status::SERVICE_UNAVAILABLE, SERVER, Some("engine_dead"), Some(5)),
        EngineError::Deadline { .. } => Line(Status::GATEWAY_TIMEOUT, SERVER, Some("deadline"), None),
        // `Step`, and whatever else an engine may report one day.
        _ => Line(Status::INTERNAL_SERVER_ERROR, SERVER, Some("decoding_failed"), None),
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let Line(status, _, code, retry_after) = self.line();
        let mut response = (status, Json(self.body())).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::REQUEST_TIMEOUT {
            // The rest of the body is not waited for.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(reason) = Rejection::ALL.into_iter().find(|&reason| Some(reason) == code) {
            response.extensions_mut().insert(Rejection(reason));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_status_and_only_passing_ones_say_when_to_come_back() {
        let overloaded = EngineError::Overloaded { waiting: 8 };
        for (error, status, retry, reason) in [
            (AppError::invalid("n", "too many"), 400, false, None),
            (AppError::Engine(EngineError::PromptTooLong { got: 9, max: 8 }), 400, false, None),
            (
                AppError::Engine(EngineError::ContextTooLong { prompt: 5, answer: 4, max: 8 }),
                400,
                false,
                None,
            ),
            (AppError::Unauthorized, 401, false, None),
            (AppError::ModelNotFound, 404, false, None),
            (AppError::RouteNotFound, 404, false, None),
            (AppError::MethodNotAllowed, 405, false, None),
            (AppError::BodyTooLarge { bytes_max: 1 }, 413, false, None),
            (AppError::BodyTooSlow { seconds_max: 1 }, 408, false, None),
            (AppError::UnsupportedMedia("no"), 415, false, None),
            (AppError::Engine(overloaded), 429, true, Some("queue_full")),
            (AppError::Engine(EngineError::QueueTimeout { after_ms: 5 }), 503, true, Some("queue_timeout")),
            (AppError::Engine(EngineError::TooLarge { needs: 9, max: 8 }), 400, false, None),
            (AppError::Engine(EngineError::Step("x".into())), 500, false, None),
            (AppError::Internal, 500, false, None),
            (AppError::Loading, 503, true, Some("loading")),
            (AppError::Draining, 503, true, Some("draining")),
            (AppError::Engine(EngineError::Dead), 503, true, Some("engine_dead")),
            (AppError::Engine(EngineError::Deadline { after_ms: 5 }), 504, false, None),
        ] {
            let name = format!("{error:?}");
            let response = error.into_response();
            assert_eq!(response.status().as_u16(), status, "{name}");
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retry, "{name}");
            assert_eq!(response.extensions().get::<Rejection>().map(|found| found.0), reason, "{name}");
        }
    }
}

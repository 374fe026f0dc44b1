//! Why a server gave no answer.

use std::time::Duration;

use ntl_api::ErrorBody;
use reqwest::StatusCode;

use crate::cli::base_url::BaseUrl;

/// Longest part of a body that is no error object to repeat in a message.
const EXCERPT_CHARS: usize = 200;

/// Why a server gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The HTTP client could not be built.
    #[error("could not set up HTTP")]
    Setup {
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// No server was given.
    #[error("there is no endpoint to ask")]
    NoEndpoint,
    /// No connection, a broken one, or no answer in time.
    #[error("endpoint {endpoint} is not reachable")]
    Unreachable {
        /// The server.
        endpoint: BaseUrl,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// Any status but success.
    #[error("endpoint {endpoint} answered {status}: {message}")]
    Refused {
        /// The server.
        endpoint: BaseUrl,
        /// Its status.
        status: StatusCode,
        /// Its message, or the beginning of its body.
        message: String,
        /// How long it asks to wait.
        retry_after: Option<Duration>,
    },
    /// The body is not what the route answers with.
    #[error("the answer of endpoint {endpoint} could not be read")]
    Unreadable {
        /// The server.
        endpoint: BaseUrl,
        /// Where it went wrong.
        #[source]
        source: serde_json::Error,
    },
    /// An answer without a choice.
    #[error("the answer holds no choices")]
    NoChoices,
    /// A number was asked for and none came.
    #[error("the endpoint has no number support: {reason}; use --mode text")]
    NoNumber {
        /// How it shows.
        reason: String,
    },
    /// The server lacks a route that the run needs.
    #[error("the endpoint has no {route}, which {need}")]
    NoRoute {
        /// The route.
        route: &'static str,
        /// What for.
        need: &'static str,
    },
    /// Nobody waits any longer.
    #[error("not tried: {reason}")]
    NotTried {
        /// Why.
        reason: &'static str,
    },
    /// The server does not list the model.
    #[error("endpoint {endpoint} has no model `{name}`; it has {}", list(.listed))]
    UnknownModel {
        /// The server.
        endpoint: BaseUrl,
        /// The model that was asked for.
        name: String,
        /// Its models.
        listed: Vec<String>,
    },
    /// The choice of model is open.
    #[error("endpoint {endpoint} has {}; name one with --model", list(.listed))]
    ModelNotNamed {
        /// The server.
        endpoint: BaseUrl,
        /// Its models: none, or several.
        listed: Vec<String>,
    },
}

impl ClientError {
    /// Whether the same request may well succeed later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Refused { status, .. } => matches!(
                *status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE
            ),
            other => other.is_unreachable(),
        }
    }

    /// Whether there was no answer at all.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether every other item would fail in the same way, so that a run has no sense.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
            }
            Self::NoNumber { .. } | Self::NoRoute { .. } => true,
            _ => false,
        }
    }

    /// What the server said of a request that it refused as it is.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { status, message, .. } if *status == StatusCode::BAD_REQUEST => Some(message),
            _ => None,
        }
    }

    /// Whether the server does not know the route.
    pub fn is_missing_route(&self) -> bool {
        matches!(self, Self::Refused { status, .. }
            if matches!(*status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED))
    }

    /// How long the server asks to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// The message inside an error body, or the beginning of whatever else was sent.
pub(super) fn message_of(body: &[u8]) -> String {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => body.error.message,
        Err(_) => String::from_utf8_lossy(body).trim().chars().take(EXCERPT_CHARS).collect(),
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "no models".to_owned(),
        [name] => format!("the model {name}"),
        names => format!("the models {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_error_body_is_shown_and_of_others_the_beginning() {
        let body = br#"{"error":{"message":"queue full","type":"overloaded","param":null,"code":null}}"#;
        assert_eq!(message_of(body), "queue full");
        assert_eq!(message_of(b" <html> "), "<html>");
        assert_eq!(message_of(&[b'x'; 999]).len(), EXCERPT_CHARS);
    }

    #[test]
    fn only_errors_that_pass_are_tried_again_and_only_hopeless_ones_end_a_run() {
        for (code, passing, fatal) in [
            (400, false, false),
            (401, false, true),
            (404, false, true),
            (429, true, false),
            (500, false, false),
            (502, true, false),
            (503, true, false),
            (504, false, false),
        ] {
            let error = ClientError::Refused {
                endpoint: "http://h".parse().unwrap(),
                status: StatusCode::from_u16(code).unwrap(),
                message: String::new(),
                retry_after: None,
            };
            assert_eq!((error.is_passing(), error.is_fatal()), (passing, fatal), "{code}");
        }
    }
}

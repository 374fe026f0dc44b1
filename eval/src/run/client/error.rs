//! Errors of requests to servers.

use std::sync::LazyLock;
use std::time::Duration;

use ntl_api::{ErrorBody, InvalidField, PathStep, SystemOneDetail, SystemOneError};
use ntl_common::trust::TrustError;
use regex::Regex;
use reqwest::StatusCode;
use serde_json::error::Category;

use crate::error::OutputError;
use crate::format::shortened;
use crate::json;
use crate::run::answer_extraction::regex;
use crate::settings::base_url::BaseUrl;

const EXCERPT_CHARS: usize = 200;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("could not set up HTTP")]
    Setup { source: reqwest::Error },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("there is no endpoint")]
    NoEndpoint,
    /// No connection, a broken connection, or no response from an endpoint that does not answer a probe
    /// either.
    #[error("endpoint {endpoint} is not reachable")]
    Unreachable { endpoint: BaseUrl, source: reqwest::Error },
    /// The endpoint sent nothing for the time of `--timeout`. `cause` is left out of messages: it adds
    /// nothing.
    #[error(
        "endpoint {endpoint} is slow: no response within {} after the last byte; raise --timeout or lower --concurrency",
        shown(*.timeout)
    )]
    NoResponse { endpoint: BaseUrl, timeout: Duration, cause: reqwest::Error },
    /// Any status except success, with the server's message or the beginning of the body.
    #[error("endpoint {endpoint} returned {status}: {message}")]
    Refused { endpoint: BaseUrl, status: StatusCode, message: String, retry_after: Option<Duration> },
    /// All endpoints were unreachable or unavailable for the time that a run waits for them.
    #[error("no endpoint was available for {}", shown(*.lasted))]
    Outage { lasted: Duration, source: Box<ClientError> },
    /// The weights of the model were swapped during the run, or another endpoint has different weights.
    #[error(
        "endpoint {endpoint} serves a different checkpoint under the same name: this run began with the fingerprint {was}, but the \
         response has {is}; serve the first checkpoint again, or restart the run with --overwrite"
    )]
    OtherCheckpoint { endpoint: BaseUrl, was: String, is: String },
    /// A check of the model found another one. Answers since the last check may come from it.
    #[error(
        "endpoint {endpoint} serves another model under the same name: {difference}; answers since the last check of the \
         model are dropped, so serve the first model again, or restart the run with --overwrite"
    )]
    OtherModel { endpoint: BaseUrl, difference: String },
    /// The body does not have the format of the route's response.
    #[error("the response of endpoint {endpoint} could not be read: {problem}")]
    Unreadable { endpoint: BaseUrl, problem: String },
    #[error("the response of endpoint {endpoint} is longer than {} MiB", .bytes_max >> 20)]
    TooLong { endpoint: BaseUrl, bytes_max: usize },
    /// `to` is the location that the server sent.
    #[error(
        "endpoint {endpoint} redirects to {to}, which is another server or one redirect too many; specify the final address with --endpoint"
    )]
    Redirected { endpoint: BaseUrl, to: String },
    #[error("the response has no choices")]
    NoChoices,
    #[error("the response's `number` is impossible: {problem}")]
    ImpossibleNumber { problem: String },
    #[error("the response has no usable answer: {problem}")]
    UnusableDecision { problem: String },
    #[error("the endpoint has no number support: {reason}; use --mode text")]
    NoNumber { reason: String },
    #[error("the endpoint has no {route}, which {need}")]
    NoRoute { route: &'static str, need: &'static str },
    /// The request was not sent before the deadline of the run.
    #[error("not tried: the deadline of the run has passed")]
    DeadlinePassed,
    #[error("endpoint {endpoint} has no model `{name}`; it has {}", list(.listed))]
    UnknownModel { endpoint: BaseUrl, name: String, listed: Vec<String> },
    /// Several servers can only be used together if they serve the same model.
    #[error("endpoints {first} and {second} have different models with the name `{name}`: {difference}")]
    DifferentModels { first: BaseUrl, second: BaseUrl, name: String, difference: String },
    /// The server lists no models, or several.
    #[error("endpoint {endpoint} has {}; name one with --model", list(.listed))]
    ModelNotNamed { endpoint: BaseUrl, listed: Vec<String> },
}

impl ClientError {
    /// Returns whether the same request may succeed later, when the endpoint is available.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { status, .. } => matches!(
                *status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE
            ),
            other => other.is_unreachable(),
        }
    }

    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Returns whether the endpoint sent no response, or only the beginning of one.
    pub fn is_without_response(&self) -> bool {
        self.is_unreachable() || matches!(self, Self::NoResponse { .. })
    }

    /// Turns a missing response into the error of an endpoint that is not available.
    pub(super) fn into_unreachable(self) -> Self {
        match self {
            Self::NoResponse { endpoint, cause, .. } => Self::Unreachable { endpoint, source: cause },
            other => other,
        }
    }

    /// Returns whether an available endpoint failed with a status that OpenAI's SDK retries.
    pub fn may_be_retried(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                status.is_server_error()
                    || matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT)
            }
            _ => false,
        }
    }

    /// Returns whether every other request would fail in the same way.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
            }
            Self::NoNumber { .. } | Self::NoRoute { .. } | Self::Redirected { .. } => true,
            _ => false,
        }
    }

    /// Returns the server's message if it rejected the request with status 400.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { status, message, .. } if *status == StatusCode::BAD_REQUEST => Some(message),
            _ => None,
        }
    }

    /// Returns whether the run has to stop but may be continued later.
    pub fn suspends_run(&self) -> bool {
        matches!(self, Self::Outage { .. } | Self::OtherCheckpoint { .. } | Self::OtherModel { .. })
    }

    /// Returns a key that is equal for errors that only differ in numbers, such as lengths of prompts.
    pub fn kind(&self) -> String {
        match self {
            Self::Refused { status, message, .. } => {
                let message = message.replace(|c: char| c.is_ascii_digit(), "");
                format!("{status} {message}")
            }
            Self::Unreachable { .. } => "unreachable".to_owned(),
            Self::NoResponse { .. } => "no response".to_owned(),
            Self::Unreadable { .. } => "unreadable".to_owned(),
            Self::TooLong { .. } => "too long".to_owned(),
            Self::ImpossibleNumber { .. } => "impossible number".to_owned(),
            Self::UnusableDecision { .. } => "unusable decision".to_owned(),
            other => other.to_string(),
        }
    }

    pub fn is_missing_route(&self) -> bool {
        matches!(self, Self::Refused { status, .. }
            if matches!(*status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED))
    }

    /// Returns whether the route is missing, and not the model, whose absence has the same status.
    pub fn is_unknown_route(&self) -> bool {
        match self {
            Self::Refused { message, .. } => self.is_missing_route() && !message.contains("model"),
            _ => false,
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Formats a time in whole seconds, or in milliseconds if it is below one second.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

/// Returns the message of an error body, a description of a web page, or the beginning of any other body.
pub(super) fn message_of(body: &[u8]) -> String {
    if let Ok(body) = serde_json::from_slice::<ErrorBody>(body) {
        return body.error.message;
    }
    match serde_json::from_slice::<SystemOneError>(body) {
        Ok(SystemOneError { detail: SystemOneDetail::Failed { message, .. } }) => message,
        Ok(SystemOneError { detail: SystemOneDetail::Invalid(fields) }) => invalid_fields(&fields),
        Err(_) => page(body).unwrap_or_else(|| excerpt(body)),
    }
}

/// Describes the invalid fields of a request: `body.questions.0.criteria: too short`.
fn invalid_fields(fields: &[InvalidField]) -> String {
    let mut problems = Vec::new();
    for InvalidField { loc, msg, .. } in fields {
        let mut steps = Vec::new();
        for step in loc {
            steps.push(match step {
                PathStep::Index(index) => index.to_string(),
                PathStep::Name(name) => name.clone(),
            });
        }
        problems.push(format!("{}: {msg}", steps.join(".")));
    }
    shortened(&problems.join("; "), EXCERPT_CHARS)
}

/// Returns why a body is not a valid response of its route.
pub(super) fn problem_of(body: &[u8], error: &serde_json::Error) -> String {
    if let Some(page) = page(body) {
        return page;
    }
    match error.classify() {
        Category::Data => json::problem(error),
        _ if body.is_empty() => "it is empty".to_owned(),
        _ => format!("{}: {:?}", json::problem(error), excerpt(body)),
    }
}

/// Describes a web page that the server returned instead of JSON. `None` for any other body.
fn page(body: &[u8]) -> Option<String> {
    static TITLE: LazyLock<Regex> = LazyLock::new(|| regex(r"(?is)<title[^>]*>(.*?)</title"));
    let text = String::from_utf8_lossy(body);
    let start = text.trim_start().get(..5)?.to_ascii_lowercase();
    if !matches!(start.as_str(), "<!doc" | "<html") {
        return None;
    }
    let title = TITLE.captures(&text).and_then(|found| found.get(1));
    let title = title.map_or(String::new(), |title| format!(" {:?}", shortened(title.as_str(), 80)));
    Some(format!("it is a web page{title} instead of JSON; is this the address of an OpenAI-style server?"))
}

fn excerpt(body: &[u8]) -> String {
    shortened(&String::from_utf8_lossy(body), EXCERPT_CHARS)
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
    fn errors_show_the_message_of_an_error_body_or_the_beginning_of_another_body() {
        let body = br#"{"error":{"message":"queue full","type":"overloaded","param":null,"code":null}}"#;
        assert_eq!(message_of(body), "queue full");
        let body =
            br#"{"detail":[{"loc":["body","questions","0","criteria",1],"msg":"too long","type":"x"}]}"#;
        assert_eq!(message_of(body), "body.questions.0.criteria.1: too long");
        let body = br#"{"detail":{"error_type":"x","message":"no such model"}}"#;
        assert_eq!(message_of(body), "no such model");
        assert_eq!(message_of(b" busy\n"), "busy");
        assert_eq!(message_of(&[b'x'; 999]).chars().count(), EXCERPT_CHARS);
    }

    #[test]
    fn a_web_page_an_empty_body_and_broken_text_have_different_messages() {
        let problem = |body: &[u8]| {
            let error = serde_json::from_slice::<ErrorBody>(body).unwrap_err();
            problem_of(body, &error)
        };
        let page = problem(b"\n<!DOCTYPE html><html><head><title>Welcome to\n nginx!</title>");
        assert!(page.starts_with("it is a web page \"Welcome to nginx!\" instead of JSON; "), "{page}");
        assert_eq!(problem(b""), "it is empty");
        assert_eq!(problem(b"busy"), "it is not JSON (column 1): \"busy\"");
        assert_eq!(problem(b"{}"), "missing field `error`");
        assert_eq!(problem(b"[1]"), "found the number `1`, expected an object");
    }

    #[test]
    fn only_transient_errors_are_retried_and_only_permanent_ones_end_a_run() {
        for (code, transient, retried, fatal) in [
            (400, false, false, false),
            (401, false, false, true),
            (404, false, false, true),
            (408, false, true, false),
            (409, false, true, false),
            (422, false, false, false),
            (429, true, false, false),
            (500, false, true, false),
            (502, true, true, false),
            (503, true, true, false),
            (504, false, true, false),
        ] {
            let error = ClientError::Refused {
                endpoint: "http://h".parse().unwrap(),
                status: StatusCode::from_u16(code).unwrap(),
                message: String::new(),
                retry_after: None,
            };
            let found = (error.is_transient(), error.may_be_retried(), error.is_fatal());
            assert_eq!(found, (transient, retried, fatal), "{code}");
        }
    }
}

//! Why an engine gave no usable response.

use std::fmt;
use std::time::Duration;

use ntl_core::is_unprintable;
use serde_json::Value;

/// Characters of an engine's message that an error repeats.
const MESSAGE_CHARS_MAX: usize = 500;

/// A failed request to an engine. `replica` is its host and port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The engine says that the request is wrong.
    #[error("the engine at {replica} rejects the request: {message}")]
    Rejected {
        replica: String,
        message: String,
        /// The field that the engine names, if it names one.
        param: Option<String>,
    },
    /// The engine has too much to do.
    #[error("the engine at {replica} is overloaded: {message}")]
    Overloaded {
        replica: String,
        message: String,
        /// How long the engine asks to wait.
        retry_after_seconds: Option<u32>,
    },
    /// Any other status that is not a success.
    #[error("the engine at {replica} returned status {status}: {message}")]
    Status { replica: String, status: u16, message: String },
    #[error("the engine at {replica} is unreachable: {reason}")]
    Unreachable { replica: String, reason: String },
    /// This process cannot open a connection now. The engine may be well.
    #[error("this server has no connection left for the engine at {replica}: {reason}")]
    NoConnection { replica: String, reason: String },
    #[error("the engine at {replica} closed the connection: {reason}")]
    Disconnected { replica: String, reason: String },
    #[error("the engine at {replica} did not respond within {}", Shown(*.after))]
    Timeout { replica: String, after: Duration },
    #[error("the engine at {replica} redirects to {to}; redirects are not followed")]
    Redirected { replica: String, to: String },
    #[error("the response of the engine at {replica} exceeds {bytes_max} bytes")]
    TooLarge { replica: String, bytes_max: usize },
    #[error("the response of the engine at {replica} is not understood: {reason}")]
    NotUnderstood { replica: String, reason: String },
    /// The engine serves another model than before, other weights, or the same model in another way.
    #[error("the engine at {replica} has changed: {reason}")]
    OtherModel { replica: String, reason: String },
    /// The engine stopped answering health checks while a request was in flight.
    #[error("the engine at {replica} stopped responding to health checks")]
    Unhealthy { replica: String },
}

impl UpstreamError {
    /// Returns whether the client of the server caused it, so that every replica would reject the request.
    pub fn is_clients_fault(&self) -> bool {
        matches!(self, Self::Rejected { .. })
    }

    /// Returns whether the engine ran out of time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Returns whether the same replica may answer the same request later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => *status == 408 || *status >= 500,
            Self::Overloaded { .. }
            | Self::Unreachable { .. }
            | Self::NoConnection { .. }
            | Self::Disconnected { .. }
            | Self::Unhealthy { .. } => true,
            // More time would be needed, and the caller has waited already.
            Self::Timeout { .. }
            | Self::Rejected { .. }
            | Self::Redirected { .. }
            | Self::TooLarge { .. }
            | Self::OtherModel { .. }
            | Self::NotUnderstood { .. } => false,
        }
    }

    /// Returns whether an engine may fail like this because of the answer that it has drawn, such as an empty
    /// or a very long one. Then another draw would favour other answers.
    pub(crate) fn may_depend_on_answer(&self) -> bool {
        match self {
            // A gateway sends these two if there is no engine.
            Self::Status { status: 502 | 503, .. } => false,
            Self::Status { status, .. } => *status == 408 || *status >= 500,
            Self::Timeout { .. } | Self::TooLarge { .. } | Self::NotUnderstood { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the engine may have computed a part of the response.
    pub fn may_have_computed(&self) -> bool {
        self.may_depend_on_answer() || matches!(self, Self::Disconnected { .. } | Self::Unhealthy { .. })
    }

    /// Returns whether nothing listens at the replica. Other failures may be due to one request alone, so
    /// that only health checks decide.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Returns whether the replica must not be used before it serves the same model again.
    pub(crate) fn is_other_model(&self) -> bool {
        matches!(self, Self::OtherModel { .. })
    }

    /// How long the engine asks to wait before the next request.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded { retry_after_seconds, .. } => {
                retry_after_seconds.map(|seconds| Duration::from_secs(seconds.into()))
            }
            _ => None,
        }
    }

    /// Returns whether this process lacks something, so that the failure says nothing about the replica.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::NoConnection { .. })
    }

    /// The label `code` of the metric of requests.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Rejected { .. } => Code::Status(400),
            Self::Overloaded { .. } => Code::Status(429),
            Self::Status { status, .. } => Code::Status(*status),
            Self::Unreachable { .. } => Code::Failure("unreachable"),
            Self::NoConnection { .. } => Code::Failure("no_connection"),
            Self::Disconnected { .. } => Code::Failure("disconnected"),
            Self::Timeout { .. } => Code::Failure("timeout"),
            Self::Redirected { .. } => Code::Failure("redirected"),
            Self::TooLarge { .. } => Code::Failure("too_large"),
            Self::NotUnderstood { .. } => Code::Failure("not_understood"),
            Self::OtherModel { .. } => Code::Failure("other_model"),
            Self::Unhealthy { .. } => Code::Failure("unhealthy"),
        }
    }
}

/// How a request to an engine ended, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    Status(u16),
    Failure(&'static str),
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A hostile engine must not be able to create hundreds of time series.
            Self::Status(status @ (200 | 400 | 401 | 403 | 404 | 408 | 413 | 422 | 429 | 500..=504)) => {
                write!(f, "{status}")
            }
            Self::Status(status) => write!(f, "{}xx", status / 100),
            Self::Failure(name) => f.write_str(name),
        }
    }
}

struct Shown(Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0 => write!(f, "{} ms", self.0.as_millis()),
            seconds => write!(f, "{seconds} s"),
        }
    }
}

/// Returns the message of an error body in one of the usual shapes, or any other body as it is.
pub(super) fn message_of(body: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(body).ok().and_then(|body| {
        let places = ["/error/message", "/error", "/message", "/detail"];
        places.iter().find_map(|place| Some(body.pointer(place)?.as_str()?.to_owned()))
    });
    message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned())
}

/// Returns the field that an error body of OpenAI's form names.
pub(super) fn param_of(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(body.pointer("/error/param")?.as_str()?.to_owned())
}

/// Returns the beginning of a text, on one line and without control characters or changes of direction.
pub(super) fn printable(text: &str) -> String {
    let mut shown: String = text
        .trim()
        .chars()
        .take(MESSAGE_CHARS_MAX)
        .map(|character| if is_unprintable(character) { ' ' } else { character })
        .collect();
    if text.trim().chars().nth(MESSAGE_CHARS_MAX).is_some() {
        shown.push('…');
    }
    if shown.is_empty() { "no message".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_every_usual_error_body_is_shown_and_others_are_cut_and_made_printable() {
        for (body, want) in [
            (r#"{"error":{"message":"too long","type":"x","param":null,"code":400}}"#, "too long"),
            (r#"{"error":"busy"}"#, "busy"),
            (r#"{"object":"error","message":"wrong"}"#, "wrong"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (" <html>\n\u{1b}[31mno", "<html>  [31mno"),
            ("", "no message"),
        ] {
            assert_eq!(printable(&message_of(body.as_bytes())), want);
        }
        assert_eq!(printable(&"x".repeat(9_999)).chars().count(), MESSAGE_CHARS_MAX + 1);
        assert_eq!(printable("a\u{202e}b\u{2066}c"), "a b c");
    }

    #[test]
    fn the_codes_of_the_metric_are_few() {
        let codes: std::collections::BTreeSet<String> =
            (100..=999).map(|status| Code::Status(status).to_string()).collect();
        assert_eq!(codes.len(), 14 + 9);
    }
}

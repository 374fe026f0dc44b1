//! Every way in which a request can fail, and the only table of status codes.
//!
//! In: [`AppError`] from any layer. Out: a status, the JSON error body with all four keys, and `Retry-After`
//! for conditions that pass.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ntl_api::{ErrorBody, ErrorDetail};
use ntl_core::contract::EngineError;
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

use ntl_common::printable::{printable, shortened};
use ntl_common::similar::most_similar;

use crate::quota::{QuotaExceeded, Unit};

#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    /// `param` is the invalid field, if there is one.
    #[error("{message}")]
    Invalid { message: String, param: Option<String> },
    /// A request names the server in a way that a web page may have chosen.
    #[error("`{0}` is not a name of this server; if it is, start the server with `--allowed-hosts {0}`")]
    HostNotAllowed(String),
    #[error("this port serves HTTPS only: use a URL that begins with `https://`")]
    NotHttps,
    #[error("a valid API key is needed: send it as `Authorization: Bearer KEY`")]
    Unauthorized,
    #[error(transparent)]
    ModelNotFound(#[from] ModelNotFound),
    #[error("there is no route at this path")]
    RouteNotFound,
    #[error("this path does not accept this method")]
    MethodNotAllowed,
    /// A text that has too many tokens for any tokenization.
    #[error("prompt has {bytes} bytes; one of at most {tokens_max} tokens has at most {bytes_max}")]
    TextTooLong { bytes: usize, bytes_max: usize, tokens_max: usize },
    #[error("the body is larger than {bytes_max} bytes")]
    BodyTooLarge { bytes_max: usize },
    #[error(
        "the values of the body may take {bytes} bytes of memory, all bodies together at most {bytes_max}"
    )]
    BodyHasTooManyValues { bytes: usize, bytes_max: usize },
    #[error("the body did not arrive within {seconds_max} seconds")]
    BodyTooSlow { seconds_max: u64 },
    #[error("the server is reading too many request bodies")]
    BodiesFull,
    #[error(
        "the response may have {bytes} bytes; at most {bytes_max} are allowed. Lower or leave out {}",
        alternatives(.fields)
    )]
    ResponseTooLarge { bytes: usize, bytes_max: usize, fields: Vec<&'static str> },
    #[error("the server holds too many large responses that are not read yet")]
    ResponsesFull,
    #[error("{0}")]
    UnsupportedMedia(&'static str),
    #[error("the models are being loaded")]
    Loading,
    #[error("the server has no memory for more work")]
    MemoryFull,
    #[error("the server is shutting down")]
    Draining,
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An error of a prompt that has another name in the request, such as `prompt[2]` or `input`.
    #[error("`{param}`: {error}")]
    OfPrompt { param: String, error: Box<AppError> },
    #[error("the server failed while answering this request")]
    Internal,
}

/// A request names a model that is not served.
#[derive(Debug, thiserror::Error)]
#[error("the model `{}` does not exist; {}{}", quoted(.name), listed(.served), self.hint())]
pub(crate) struct ModelNotFound {
    pub(crate) name: String,
    /// The names of the served models.
    pub(crate) served: Vec<String>,
}

/// Maximum length of a reason in the log.
const REASON_CHARS_MAX: usize = 300;

/// A message quotes at most this many characters of the name of a model that does not exist.
const NAME_CHARS_MAX: usize = 100;

/// The beginning of a name on one line.
fn quoted(name: &str) -> String {
    printable(&shortened(name, NAME_CHARS_MAX)).into_owned()
}

fn listed(names: &[String]) -> String {
    let verb = if names.len() == 1 { "the served model is" } else { "the served models are" };
    format!("{verb} `{}`", names.join("`, `"))
}

fn alternatives(fields: &[&str]) -> String {
    format!("`{}`", fields.join("` or `"))
}

impl ModelNotFound {
    /// The served name that is most similar, regardless of case.
    fn hint(&self) -> String {
        let name = quoted(&self.name).to_lowercase();
        let lower: Vec<String> = self.served.iter().map(|served| served.to_lowercase()).collect();
        let near = most_similar(&name, lower.iter().map(String::as_str));
        let near = near.and_then(|near| self.served.iter().find(|served| served.to_lowercase() == near));
        near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
    }
}

/// The state of the server that caused a rejection; a response extension, and the label of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rejection(pub(crate) &'static str);

impl Rejection {
    pub(crate) const ALL: [&'static str; 11] = [
        "queue_full",
        "queue_timeout",
        "bodies_full",
        "responses_full",
        "memory_full",
        "no_connection",
        "loading",
        "draining",
        "engine_dead",
        "device_lost",
        "rate_limit_exceeded",
    ];
}

/// The error of a response; a response extension, for APIs whose errors have another form.
#[derive(Debug, Clone)]
pub(crate) struct ErrorReport(pub(crate) ErrorDetail);

/// The reason for a 400 response, for the log; a response extension. It has no text of the request's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusalReason(pub(crate) String);

impl RefusalReason {
    /// The beginnings of serde's messages about a value, which they quote before `, expected`.
    const ABOUT_VALUES: [&str; 3] = ["invalid type: ", "invalid value: ", "unknown variant "];

    /// The message of an error without the texts that it may quote from the request.
    fn of(error: &AppError) -> Self {
        let message = error.to_string();
        let reason = match error {
            AppError::Engine(EngineError::Guide(_)) => "guided decoding failed".to_owned(),
            AppError::Engine(EngineError::UpstreamRejected(_)) => "the engine rejects it".to_owned(),
            AppError::OfPrompt { param, error } => format!("`{param}`: {}", Self::of(error).0),
            AppError::Invalid { param: Some(param), .. } => {
                let rest = message.strip_prefix(&format!("`{param}`")).unwrap_or(&message);
                // The server chose these words. After a colon follow the words of a library or of a chat
                // template.
                if rest.starts_with(' ') {
                    message
                } else {
                    format!("`{param}`: …{}", Self::expected(rest))
                }
            }
            _ => message,
        };
        Self(shortened(&reason, REASON_CHARS_MAX).into_owned())
    }

    /// The part of a message of serde that says what is expected.
    fn expected(message: &str) -> &str {
        let message = message.strip_prefix(": ").unwrap_or(message);
        let is_serde = Self::ABOUT_VALUES.iter().any(|beginning| message.starts_with(beginning));
        match message.rfind(", expected ") {
            Some(at) if is_serde => &message[at..],
            _ => "",
        }
    }
}

/// One row of the table of status codes.
struct Row {
    status: StatusCode,
    /// `type` in the body.
    kind: &'static str,
    code: Option<&'static str>,
    retry_after_seconds: Option<u32>,
}

/// The field of prompts in completions.
const PROMPT: &str = "prompt";

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";
const OVERLOADED: &str = "overloaded_error";

/// Fails with "`param` message" unless `fits`, as in "`n` must be from 1 to 20".
pub(crate) fn check(param: &str, fits: bool, message: impl AsRef<str>) -> Result<(), AppError> {
    if fits { Ok(()) } else { Err(AppError::field(param, message)) }
}

/// The value of a field that a request must have.
pub(crate) fn required<T>(param: &str, value: Option<T>) -> Result<T, AppError> {
    value.ok_or_else(|| AppError::field(param, "is missing"))
}

/// The value of a field or its default, if it lies in `range`.
pub(crate) fn in_range<T: PartialOrd + Display>(
    param: &str,
    value: Option<T>,
    default: T,
    range: RangeInclusive<T>,
) -> Result<T, AppError> {
    let value = value.unwrap_or(default);
    check(param, range.contains(&value), format!("must be from {} to {}", range.start(), range.end()))?;
    Ok(value)
}

impl AppError {
    /// A wrong request: `message` is the whole message.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), param: Some(param.into()) }
    }

    /// A wrong field: `message` follows its name.
    pub(crate) fn field(param: &str, message: impl AsRef<str>) -> Self {
        Self::invalid(param, format!("`{param}` {}", message.as_ref()))
    }

    /// Names the prompt that an error of the request is about, if the request has several, or if the error
    /// says that the only one is too long. `field` lists the prompts.
    pub(crate) fn of_prompt(self, field: &str, index: usize, count: usize) -> Self {
        if matches!(self, Self::Invalid { .. }) || self.row().status != StatusCode::BAD_REQUEST {
            return self;
        }
        let param = match self {
            _ if count > 1 => format!("{field}[{index}]"),
            Self::Engine(EngineError::PromptTooLong { .. }) | Self::TextTooLong { .. } if field != PROMPT => {
                field.to_owned()
            }
            _ => return self,
        };
        Self::OfPrompt { param, error: Box::new(self) }
    }

    pub(crate) fn body(&self) -> ErrorBody {
        let Row { kind, code, .. } = self.row();
        let param = match self {
            Self::Invalid { param, .. } => param.clone(),
            Self::OfPrompt { param, .. } => Some(param.clone()),
            Self::ModelNotFound(_) => Some("model".to_owned()),
            Self::ResponseTooLarge { fields, .. } => fields.first().map(|&field| field.to_owned()),
            Self::Engine(EngineError::PromptTooLong { .. }) | Self::TextTooLong { .. } => {
                Some(PROMPT.to_owned())
            }
            Self::Engine(EngineError::ContextTooLong { .. }) => Some("max_tokens".to_owned()),
            _ => None,
        };
        let message = self.to_string();
        let kind = kind.to_owned();
        let code = code.map(str::to_owned);
        ErrorBody { error: ErrorDetail { message, kind, param, code } }
    }

    fn row(&self) -> Row {
        use StatusCode as S;
        let (status, kind, code, retry_after_seconds) = match self {
            Self::Invalid { .. } => (S::BAD_REQUEST, INVALID, None, None),
            Self::OfPrompt { error, .. } => return error.row(),
            Self::NotHttps => (S::BAD_REQUEST, INVALID, Some("not_https"), None),
            Self::TextTooLong { .. } => (S::BAD_REQUEST, INVALID, Some("context_length_exceeded"), None),
            Self::Unauthorized => (S::UNAUTHORIZED, INVALID, Some("invalid_api_key"), None),
            Self::HostNotAllowed(_) => (S::FORBIDDEN, INVALID, Some("host_not_allowed"), None),
            Self::ModelNotFound(_) => (S::NOT_FOUND, INVALID, Some("model_not_found"), None),
            Self::RouteNotFound => (S::NOT_FOUND, INVALID, Some("route_not_found"), None),
            Self::MethodNotAllowed => (S::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"), None),
            Self::BodyTooLarge { .. } | Self::BodyHasTooManyValues { .. } => {
                (S::PAYLOAD_TOO_LARGE, INVALID, Some("body_too_large"), None)
            }
            Self::ResponseTooLarge { .. } => {
                (S::PAYLOAD_TOO_LARGE, INVALID, Some("response_too_large"), None)
            }
            Self::BodyTooSlow { .. } => (S::REQUEST_TIMEOUT, INVALID, Some("body_too_slow"), None),
            Self::UnsupportedMedia(_) => {
                (S::UNSUPPORTED_MEDIA_TYPE, INVALID, Some("unsupported_media_type"), None)
            }
            Self::BodiesFull => (S::SERVICE_UNAVAILABLE, OVERLOADED, Some("bodies_full"), Some(1)),
            Self::ResponsesFull => (S::SERVICE_UNAVAILABLE, OVERLOADED, Some("responses_full"), Some(1)),
            Self::MemoryFull => (S::SERVICE_UNAVAILABLE, OVERLOADED, Some("memory_full"), Some(5)),
            Self::Loading => (S::SERVICE_UNAVAILABLE, SERVER, Some("loading"), Some(2)),
            Self::Draining => (S::SERVICE_UNAVAILABLE, SERVER, Some("draining"), Some(5)),
            Self::Quota(exceeded) => {
                // OpenAI's types.
                let kind = match exceeded.limit.unit {
                    Unit::Requests => "requests",
                    Unit::Tokens | Unit::UpstreamTokens => "tokens",
                };
                (S::TOO_MANY_REQUESTS, kind, Some("rate_limit_exceeded"), Some(exceeded.seconds()))
            }
            Self::Internal => (S::INTERNAL_SERVER_ERROR, SERVER, Some("internal_error"), None),
            Self::Engine(error) => match error {
                EngineError::PromptTooLong { .. } | EngineError::ContextTooLong { .. } => {
                    (S::BAD_REQUEST, INVALID, Some("context_length_exceeded"), None)
                }
                EngineError::TooLarge { .. } => (S::BAD_REQUEST, INVALID, Some("request_too_large"), None),
                EngineError::Guide(_) => (S::BAD_REQUEST, INVALID, Some("guide_failed"), None),
                EngineError::Overloaded { .. } => {
                    (S::TOO_MANY_REQUESTS, OVERLOADED, Some("queue_full"), Some(1))
                }
                EngineError::QueueTimeout { .. } => {
                    (S::SERVICE_UNAVAILABLE, OVERLOADED, Some("queue_timeout"), Some(5))
                }
                EngineError::Unread { .. } => (S::REQUEST_TIMEOUT, INVALID, Some("answer_unread"), None),
                EngineError::Dead => (S::SERVICE_UNAVAILABLE, SERVER, Some("engine_dead"), Some(5)),
                EngineError::DeviceLost(_) => (S::SERVICE_UNAVAILABLE, SERVER, Some("device_lost"), Some(5)),
                EngineError::Deadline { .. } => (S::GATEWAY_TIMEOUT, SERVER, Some("deadline"), None),
                EngineError::Unsupported(_) => (S::BAD_REQUEST, INVALID, Some("unsupported"), None),
                EngineError::UpstreamRejected(_) => {
                    (S::BAD_REQUEST, INVALID, Some("upstream_rejected"), None)
                }
                EngineError::UpstreamOverloaded { retry_after_seconds, .. } => {
                    let seconds = retry_after_seconds.unwrap_or(1);
                    (S::TOO_MANY_REQUESTS, OVERLOADED, Some("upstream_overloaded"), Some(seconds))
                }
                EngineError::NoConnection(_) => {
                    (S::SERVICE_UNAVAILABLE, OVERLOADED, Some("no_connection"), Some(1))
                }
                EngineError::Upstream(_) => (S::BAD_GATEWAY, SERVER, Some("upstream_failed"), None),
                EngineError::UpstreamTimeout(_) => {
                    (S::GATEWAY_TIMEOUT, SERVER, Some("upstream_timeout"), None)
                }
                // `Step`, and errors that later engines may add.
                _ => (S::INTERNAL_SERVER_ERROR, SERVER, Some("decoding_failed"), None),
            },
        };
        Row { status, kind, code, retry_after_seconds }
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let Row { status, code, retry_after_seconds, .. } = self.row();
        let body = self.body();
        let report = ErrorReport(body.error.clone());
        let mut response = (status, Json(body)).into_response();
        response.extensions_mut().insert(report);
        let headers = response.headers_mut();
        if let Some(seconds) = retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::REQUEST_TIMEOUT {
            // The server does not wait for the rest of the body.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::BAD_REQUEST {
            response.extensions_mut().insert(RefusalReason::of(&self));
        }
        if let Some(reason) = Rejection::ALL.into_iter().find(|&reason| Some(reason) == code) {
            response.extensions_mut().insert(Rejection(reason));
        }
        response
    }
}

/// The errors of a route that does work, for the OpenAPI description.
impl IntoResponses for AppError {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let statuses = [
            (400, "The request is wrong; `param` names the field"),
            (401, "No valid API key"),
            (404, "No model of this name"),
            (408, "The body did not arrive in time"),
            (413, "The body is too large, or the response may be"),
            (415, "The body is not plain JSON"),
            (
                429,
                "The queue is full, the engine that serves the model is, or the API key has used up its quota; `Retry-After` says when to try again",
            ),
            (500, "The server or the model failed"),
            (502, "The engine that serves the model is unreachable, or its response is not understood"),
            (503, "Loading, draining, short of memory or out of order; `Retry-After` says when to try again"),
            (504, "The answer took too long"),
        ];
        let mut responses = BTreeMap::new();
        for (status, about) in statuses {
            let schema = Ref::from_schema_name(ErrorBody::name());
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let response =
                ResponseBuilder::new().description(about).content("application/json", content).build();
            responses.insert(status.to_string(), RefOr::T(response));
        }
        responses
    }
}

#[cfg(test)]
mod tests {
    use ntl_core::guide::GuideError;

    use super::*;

    #[test]
    fn an_error_of_one_of_several_prompts_keeps_its_status_and_names_the_prompt() {
        let long = || AppError::Engine(EngineError::ContextTooLong { prompt: 5, answer: 4, max: 8 });
        let error = long().of_prompt("prompt", 2, 3);
        let body = error.body().error;
        assert_eq!(body.param.as_deref(), Some("prompt[2]"));
        assert_eq!(body.code, long().body().error.code);
        assert_eq!(body.message, format!("`prompt[2]`: {}", long()));
        assert_eq!(error.row().status, StatusCode::BAD_REQUEST);
        assert_eq!(long().of_prompt("prompt", 0, 1).body().error.param.as_deref(), Some("max_tokens"));
        let bytes = || AppError::TextTooLong { bytes: 9, bytes_max: 8, tokens_max: 4 };
        for (field, message) in [("prompt", bytes().to_string()), ("input", format!("`input`: {}", bytes()))]
        {
            let body = bytes().of_prompt(field, 0, 1).body().error;
            assert_eq!((body.param.as_deref(), body.message), (Some(field), message));
        }
        // Errors that are not about the prompt stay as they are.
        for error in
            [AppError::Draining, AppError::Engine(EngineError::Dead), AppError::field("n", "is wrong")]
        {
            let message = error.to_string();
            assert_eq!(error.of_prompt("prompt", 1, 2).to_string(), message);
        }
        let quoting = AppError::Engine(EngineError::Guide(GuideError("secret".to_owned())));
        let reason = RefusalReason::of(&quoting.of_prompt("prompt", 1, 2)).0;
        assert_eq!(reason, "`prompt[1]`: guided decoding failed");
    }

    #[test]
    fn every_error_has_its_status_and_only_passing_ones_say_when_to_come_back() {
        let overloaded = EngineError::Overloaded { waiting: 8 };
        let message = "busy".to_owned();
        let upstream_overloaded = EngineError::UpstreamOverloaded { message, retry_after_seconds: Some(7) };
        for (error, status, retry, reason) in [
            (AppError::invalid("n", "too many"), 400, false, None),
            (AppError::Engine(EngineError::PromptTooLong { got: 9, max: 8 }), 400, false, None),
            (
                AppError::Engine(EngineError::ContextTooLong { prompt: 5, answer: 4, max: 8 }),
                400,
                false,
                None,
            ),
            (AppError::TextTooLong { bytes: 9, bytes_max: 8, tokens_max: 2 }, 400, false, None),
            (AppError::NotHttps, 400, false, None),
            (AppError::Unauthorized, 401, false, None),
            (AppError::HostNotAllowed("a.example".to_owned()), 403, false, None),
            (ModelNotFound { name: "a".to_owned(), served: vec![] }.into(), 404, false, None),
            (AppError::RouteNotFound, 404, false, None),
            (AppError::MethodNotAllowed, 405, false, None),
            (AppError::BodyTooLarge { bytes_max: 1 }, 413, false, None),
            (AppError::BodyHasTooManyValues { bytes: 9, bytes_max: 8 }, 413, false, None),
            (AppError::ResponseTooLarge { bytes: 9, bytes_max: 8, fields: vec!["n"] }, 413, false, None),
            (AppError::ResponsesFull, 503, true, Some("responses_full")),
            (AppError::BodyTooSlow { seconds_max: 1 }, 408, false, None),
            (AppError::UnsupportedMedia("no"), 415, false, None),
            (AppError::Engine(overloaded), 429, true, Some("queue_full")),
            (AppError::Engine(EngineError::QueueTimeout { after_ms: 5 }), 503, true, Some("queue_timeout")),
            (AppError::Engine(EngineError::TooLarge { needs: 9, max: 8 }), 400, false, None),
            (AppError::Engine(EngineError::Step("x".into())), 500, false, None),
            (AppError::Internal, 500, false, None),
            (AppError::BodiesFull, 503, true, Some("bodies_full")),
            (AppError::MemoryFull, 503, true, Some("memory_full")),
            (AppError::Loading, 503, true, Some("loading")),
            (AppError::Draining, 503, true, Some("draining")),
            (AppError::Engine(EngineError::Dead), 503, true, Some("engine_dead")),
            (AppError::Engine(EngineError::DeviceLost("x".into())), 503, true, Some("device_lost")),
            (AppError::Engine(EngineError::Deadline { after_ms: 5 }), 504, false, None),
            (AppError::Engine(EngineError::Unsupported("no".into())), 400, false, None),
            (AppError::Engine(EngineError::UpstreamRejected("no".into())), 400, false, None),
            (AppError::Engine(upstream_overloaded), 429, true, None),
            (AppError::Engine(EngineError::NoConnection("x".into())), 503, true, Some("no_connection")),
            (AppError::Engine(EngineError::Upstream("x".into())), 502, false, None),
            (AppError::Engine(EngineError::UpstreamTimeout("x".into())), 504, false, None),
        ] {
            let name = format!("{error:?}");
            let response = error.into_response();
            assert_eq!(response.status().as_u16(), status, "{name}");
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retry, "{name}");
            assert_eq!(response.extensions().get::<RefusalReason>().is_some(), status == 400, "{name}");
            assert_eq!(response.extensions().get::<Rejection>().map(|found| found.0), reason, "{name}");
        }
    }

    #[test]
    fn a_model_that_does_not_exist_is_named_with_the_served_ones_and_the_most_similar() {
        for (name, served, want) in [
            (
                "t5-nlt",
                &["t5-ntl", "llama"][..],
                "the model `t5-nlt` does not exist; the served models are `t5-ntl`, `llama`; did you mean `t5-ntl`?",
            ),
            ("gpt-4o", &["llama"], "the model `gpt-4o` does not exist; the served model is `llama`"),
            (
                "LLAMA",
                &["llama", "Other"],
                "the model `LLAMA` does not exist; the served models are `llama`, `Other`; did you mean `llama`?",
            ),
            ("a\nb", &["x"], "the model `a\\nb` does not exist; the served model is `x`"),
        ] {
            let served = served.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(ModelNotFound { name: name.to_owned(), served }.to_string(), want);
        }
        let long = ModelNotFound { name: "x".repeat(1 << 20), served: vec!["y".to_owned()] }.to_string();
        assert!(long.len() < 200, "{}", long.len());
    }

    #[test]
    fn the_log_has_the_reason_of_a_refusal_but_no_text_of_the_request() {
        for (param, message, want) in [
            ("n", "`n` must be from 1 to 128", "`n` must be from 1 to 128"),
            (
                "n",
                "`n`: invalid type: string \"a, expected \\\"secret\\\"\", expected a number at line 1",
                "`n`: …, expected a number at line 1",
            ),
            ("method", "`method`: unknown variant `secret`, expected `tree`", "`method`: …, expected `tree`"),
            ("guided_regex", "`guided_regex`: `secret, expected x` is not closed", "`guided_regex`: …"),
            ("messages", "the chat template failed: secret", "`messages`: …"),
        ] {
            assert_eq!(RefusalReason::of(&AppError::invalid(param, message)).0, want);
        }
        let long = AppError::field(&"x".repeat(1 << 20), "is not a field of this request");
        assert!(RefusalReason::of(&long).0.len() < 1000);
    }
}

//! The examples of the description: a request and an answer of each route (`examples.json`), and what errors
//! look like.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ntl_core::contract::EngineError;
use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::path::Operation;

use crate::demo;
use crate::error::{AppError, ModelNotFound};
use crate::middleware::system_one_errors;
use crate::paths::SYSTEMONE;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    request: Option<Value>,
    answer: Value,
}

#[expect(clippy::expect_used, reason = "the file is compiled in, and a test reads it")]
static EXAMPLES: LazyLock<BTreeMap<String, Example>> =
    LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).expect("the examples are valid"));

/// Adds the examples of a path to its operation.
pub(super) fn add(operation: &mut Operation, path: &str) {
    let example = EXAMPLES.get(path);
    let request = example.and_then(|example| example.request.as_ref());
    if let (Some(RefOr::T(body)), Some(request)) = (&mut operation.request_body, request)
        && let Some(RefOr::T(content)) = body.content.values_mut().next()
    {
        content.example = Some(request.clone());
    }
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        let answer = match status.as_str() {
            "200" => example.map(|example| example.answer.clone()),
            status => error(status, path),
        };
        // The first kind of content is the default one.
        if let (Some(answer), Some(RefOr::T(content))) = (answer, response.content.values_mut().next()) {
            content.example = Some(answer);
        }
    }
}

/// The body of an error with this status.
fn error(status: &str, path: &str) -> Option<Value> {
    let error = match status {
        "400" => AppError::field("max_tokens", "must be from 1 to 4096"),
        "422" => AppError::field("state", "is missing"),
        "401" => AppError::Unauthorized,
        "404" if path.starts_with("/v1") || path.contains("token") => {
            ModelNotFound { name: "t5-nlt".to_owned(), served: vec![demo::NAME.to_owned()] }.into()
        }
        "404" => AppError::RouteNotFound,
        "408" => AppError::BodyTooSlow { seconds_max: 30 },
        "413" => AppError::BodyTooLarge { bytes_max: 2_097_152 },
        "415" => AppError::UnsupportedMedia("the content type must be application/json"),
        "429" => EngineError::Overloaded { waiting: 4096 }.into(),
        "500" => AppError::Internal,
        "502" => EngineError::Upstream("the engine at 10.0.0.7:8000 is unreachable".to_owned()).into(),
        "503" => AppError::Loading,
        "504" => EngineError::Deadline { after_ms: 600_000 }.into(),
        _ => return None,
    };
    if path == SYSTEMONE {
        return serde_json::to_value(system_one_errors::body(status.parse().ok()?, error.body().error)).ok();
    }
    serde_json::to_value(error.body()).ok()
}

//! Errors of `POST /v1/systemone` in the form of its API: status 422 with a list of fields if the request is
//! invalid, otherwise the type and the message of the error.

use axum::Json;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ntl_api::{ErrorDetail, InvalidField, PathStep, SystemOneDetail, SystemOneError};

use crate::error::ErrorReport;
use crate::paths::SYSTEMONE;

/// Rewrites the errors of any layer within this one.
pub(crate) async fn rewrite(request: Request, next: Next) -> Response {
    let is_system_one = request.uri().path() == SYSTEMONE;
    let response = next.run(request).await;
    if !is_system_one {
        return response;
    }
    let (mut parts, unchanged) = response.into_parts();
    let Some(ErrorReport(error)) = parts.extensions.remove() else {
        return Response::from_parts(parts, unchanged);
    };
    if parts.status == StatusCode::BAD_REQUEST {
        parts.status = StatusCode::UNPROCESSABLE_ENTITY;
    }
    let body = Json(body(parts.status, error)).into_response().into_body();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body)
}

/// The body of a response with this status.
pub(crate) fn body(status: StatusCode, error: ErrorDetail) -> SystemOneError {
    SystemOneError { detail: detail(status, error) }
}

fn detail(status: StatusCode, error: ErrorDetail) -> SystemOneDetail {
    let ErrorDetail { message, kind, param, code } = error;
    if status == StatusCode::UNPROCESSABLE_ENTITY {
        let mut loc = vec![PathStep::Name("body".to_owned())];
        loc.extend(steps(&param.unwrap_or_default()));
        let kind = code.unwrap_or_else(|| "value_error".to_owned());
        return SystemOneDetail::Invalid(vec![InvalidField { loc, msg: message, kind }]);
    }
    let error_type = match status {
        StatusCode::UNAUTHORIZED => "authentication_error".to_owned(),
        StatusCode::NOT_FOUND => "api_usage_error".to_owned(),
        _ => code.unwrap_or(kind),
    };
    SystemOneDetail::Failed { error_type, message }
}

/// The steps of a path such as `questions["a b"].criteria[2]`.
fn steps(path: &str) -> Vec<PathStep> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let mut json = serde_json::Deserializer::from_str(inner).into_iter::<serde_json::Value>();
            let step = match json.next() {
                Some(Ok(serde_json::Value::String(name))) => PathStep::Name(name),
                Some(Ok(index)) if index.is_u64() => PathStep::Index(index.as_u64().unwrap_or_default()),
                _ => return vec![PathStep::Name(path.to_owned())],
            };
            steps.push(step);
            rest = inner.get(json.byte_offset()..).unwrap_or_default();
            rest = rest.strip_prefix(']').unwrap_or(rest);
        } else {
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(PathStep::Name(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_a_list_of_names_and_indices() {
        let json = |path: &str| serde_json::to_string(&steps(path)).unwrap();
        for (path, want) in [
            ("", "[]"),
            ("state", r#"["state"]"#),
            ("questions.q.criteria[2]", r#"["questions","q","criteria",2]"#),
            (r#"questions["a b.]\u0007"].type"#, r#"["questions","a b.]\u0007","type"]"#),
            ("a[b]", r#"["a[b]"]"#),
            ("[0].x", r#"[0,"x"]"#),
        ] {
            assert_eq!(json(path), want, "{path}");
        }
    }
}

//! Requests that other programs on the way may read differently are refused: without a `Host` or with
//! several, and with a transfer coding other than `chunked` (RFC 9112, sections 3.2 and 6.1). HTTP/2 has
//! neither.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::AppError;

/// The outermost layer; it closes the connection of a request that it rejects.
pub(crate) async fn check(request: Request, next: Next) -> Response {
    match wrong(request.version(), request.headers()) {
        None => next.run(request).await,
        Some(message) => {
            let mut response = AppError::Invalid { message: message.to_owned(), param: None }.into_response();
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            response
        }
    }
}

fn wrong(version: Version, headers: &HeaderMap) -> Option<&'static str> {
    let hosts = headers.get_all(header::HOST).iter().count();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    if hosts > 1 || (hosts == 0 && version == Version::HTTP_11) {
        Some("a request has exactly one `Host` header")
    } else if !codings.all(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        Some("the transfer coding must be `chunked`")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn one_host_and_no_coding_but_chunked_are_allowed() {
        for (version, headers, passes) in [
            (Version::HTTP_11, &[("host", "a")][..], true),
            (Version::HTTP_11, &[("host", "a"), ("transfer-encoding", "Chunked")], true),
            (Version::HTTP_11, &[], false),
            (Version::HTTP_11, &[("host", "a"), ("host", "a")], false),
            (Version::HTTP_11, &[("host", "a"), ("transfer-encoding", "gzip, chunked")], false),
            (
                Version::HTTP_11,
                &[("host", "a"), ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")],
                false,
            ),
            (Version::HTTP_10, &[], true),
            (Version::HTTP_2, &[], true),
        ] {
            let parse = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            let mut map = HeaderMap::new();
            for (name, value) in headers.iter().map(parse) {
                map.append(name, value);
            }
            assert_eq!(wrong(version, &map).is_none(), passes, "{version:?} {headers:?}");
        }
    }
}

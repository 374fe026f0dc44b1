//! Every request has a name: the `x-request-id` it came with, or a new one. Every response says it.
//!
//! A name that came from outside goes to logs and back into a header, so only plain ones are taken on.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

/// The header.
pub(crate) const NAME: HeaderName = HeaderName::from_static("x-request-id");

/// Longest name that is taken on.
const BYTES_MAX: usize = 128;

/// The name of a request, as an extension of it.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(NAME).filter(|id| is_plain(id.as_bytes()));
        Self(given.cloned().unwrap_or_else(Self::make))
    }

    fn make() -> HeaderValue {
        let id = uuid::Uuid::new_v4().simple().to_string();
        HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("none"))
    }

    /// The name as text.
    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

fn is_plain(id: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    (1..=BYTES_MAX).contains(&id.len()) && id.iter().all(plain)
}

/// The outermost layer.
pub(crate) async fn name(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(NAME, id.0);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_kept_and_others_replaced() {
        let long = "x".repeat(129);
        for (given, kept) in [
            ("req-1", true),
            ("a1b2/c.d:e_f+g=@", true),
            ("", false),
            ("two words", false),
            ("a\tb", false),
            ("\"quoted\"", false),
            ("caf\u{e9}", false),
            (long.as_str(), false),
        ] {
            let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_bytes(given.as_bytes()).unwrap())]);
            let id = RequestId::of(&headers);
            assert_eq!(id.as_str() == given, kept, "{given:?}");
            assert!(!id.as_str().is_empty(), "{given:?}");
        }
        let none = HeaderMap::new();
        assert_ne!(RequestId::of(&none).as_str(), RequestId::of(&none).as_str());
    }
}

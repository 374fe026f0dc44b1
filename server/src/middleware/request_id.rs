//! Request ids: the `x-request-id` of the request or a new one, repeated in the response.
//!
//! An id from a client goes to the logs and back into a header, so only plain ones are kept.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use tower_http::request_id::{MakeRequestId, RequestId};

pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of an id from a client, in bytes.
const BYTES_MAX: usize = 128;

/// Removes an id that is not plain, so that the next layer makes a new one.
pub(crate) async fn drop_unusable(mut request: Request) -> Request {
    if request.headers().get(HEADER).is_some_and(|id| !is_plain(id.as_bytes())) {
        request.headers_mut().remove(HEADER);
    }
    request
}

fn is_plain(id: &[u8]) -> bool {
    (1..=BYTES_MAX).contains(&id.len())
        && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte))
}

/// Makes a UUID without hyphens for a request without an id.
#[derive(Clone)]
pub(crate) struct MakeId;

impl MakeRequestId for MakeId {
    fn make_request_id<B>(&mut self, _request: &axum::http::Request<B>) -> Option<RequestId> {
        HeaderValue::try_from(uuid::Uuid::new_v4().simple().to_string()).ok().map(RequestId::new)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[tokio::test]
    async fn plain_names_are_kept_and_others_replaced() {
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
            let value = HeaderValue::from_bytes(given.as_bytes()).unwrap();
            let request = Request::builder().header(HEADER, value).body(Body::empty()).unwrap();
            let request = drop_unusable(request).await;
            assert_eq!(request.headers().contains_key(HEADER), kept, "{given:?}");
        }
        let made = || MakeId.make_request_id(&Request::new(Body::empty())).unwrap().into_header_value();
        assert_ne!(made(), made());
        assert!(!made().is_empty());
    }
}

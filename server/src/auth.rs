//! API keys: who may use the routes that do work.
//!
//! Not here: which routes that are (`app`). Comparing takes the same time wherever two keys differ, so that a key
//! cannot be guessed byte by byte.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::{Choice, ConstantTimeEq};

use crate::error::AppError;
use crate::state::AppState;

/// The keys that open the API. Never printed.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<[String]>);

impl ApiKeys {
    /// These keys; none at all opens the API to everyone.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().collect())
    }

    /// Whether a key is asked for.
    pub(crate) fn are_checked(&self) -> bool {
        !self.0.is_empty()
    }

    fn admit(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        // All keys are compared, whichever fits.
        let fits = |given: &[u8]| -> bool {
            self.0.iter().fold(Choice::from(0), |found, key| found | given.ct_eq(key.as_bytes())).into()
        };
        self.0.is_empty() || given.is_some_and(fits)
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// Lets requests with a key pass.
pub(crate) async fn check(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, AppError> {
    if !app.settings.api_keys.admit(request.headers()) {
        return Err(AppError::Unauthorized);
    }
    Ok(next.run(request).await)
}

/// What follows `Bearer `, in whatever case that word is.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_key_opens() {
        let keys = ApiKeys::new(["one".to_owned(), "two".to_owned()]);
        for (value, admitted) in [
            ("Bearer one", true),
            ("bearer two", true),
            ("Bearer  two ", true),
            ("Bearer on", false),
            ("Bearer onee", false),
            ("Bearer ONE", false),
            ("Bearer ", false),
            ("Bearer", false),
            ("one", false),
            ("Basic one", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(keys.admit(&headers), admitted, "{value:?}");
        }
        assert!(!keys.admit(&HeaderMap::new()));
        assert!(ApiKeys::default().admit(&HeaderMap::new()));
        assert_eq!(format!("{keys:?}"), "2 keys");
    }
}

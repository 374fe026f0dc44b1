//! Which requests reach the routes that do work: those with an API key, while models are loaded, the server
//! is not draining and there is memory left. `app` decides which routes are checked.

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;

use crate::error::AppError;
use crate::keys::ApiKeys;
use crate::state::AppState;

/// Passes requests that carry an API key.
pub(crate) async fn check_key(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, AppError> {
    if !has_access(&app.settings.api_keys, request.headers()) {
        return Err(AppError::Unauthorized);
    }
    Ok(next.run(request).await)
}

/// Passes requests while models are loaded, the server is not draining and there is memory left. A request
/// that is alone passes without: refusing it would free nothing.
pub(crate) async fn admit(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, AppError> {
    if app.lifecycle.is_draining() {
        return Err(AppError::Draining);
    }
    if !app.models.are_loaded() {
        return Err(AppError::Loading);
    }
    let is_alone = app.lifecycle.in_flight() <= 1;
    if !is_alone && app.memory.is_full() {
        return Err(AppError::MemoryFull);
    }
    Ok(next.run(request).await)
}

fn has_access(keys: &ApiKeys, headers: &HeaderMap) -> bool {
    keys.is_empty() || keys.matched(headers).is_some()
}

#[cfg(test)]
mod tests {
    use axum::http::header;

    use super::*;

    #[test]
    fn only_a_whole_key_opens() {
        let keys = ApiKeys::read(vec!["one".to_owned(), "two".to_owned()], None).unwrap();
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
            assert_eq!(has_access(&keys, &headers), admitted, "{value:?}");
        }
        assert!(!has_access(&keys, &HeaderMap::new()));
        assert!(has_access(&ApiKeys::default(), &HeaderMap::new()));
        assert_eq!(format!("{keys:?}"), "2 keys");
    }
}

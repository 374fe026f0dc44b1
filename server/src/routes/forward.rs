//! Requests for text from a model that another engine computes: they go there as they are, except for the name of
//! the model and `cache_salt`, and the response comes back unread.
//!
//! Numbers are not forwarded: they come from our trees over the engine's next-token probabilities.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use ntl_core::contract::EngineError;
use ntl_remote::wire::salt_text;
use ntl_remote::{Forwarded, Upstream, UpstreamError};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use super::body::{ApiRequest, RawRequest};
use super::resolve;
use super::stream::NO_BUFFERING;
use crate::error::AppError;
use crate::paths::{CHAT, RESPONSES};
use crate::request::{Client, RequestRecord};
use crate::state::AppState;

/// The fields that decide who answers.
#[derive(Deserialize)]
struct Addressed {
    model: Option<String>,
    /// Any value but null and false requests a number.
    number: Option<Value>,
}

/// Returns the other engine that answers a request, if the request names such a model and requests no number.
/// The parser rejects a malformed body later, with an error that names the field.
pub(super) fn upstream_of(app: &AppState, request: &RawRequest) -> Option<Arc<Upstream>> {
    let addressed: Addressed = serde_json::from_slice(request.bytes()).ok()?;
    if addressed.number.is_some_and(|number| number != Value::Bool(false)) {
        return None;
    }
    let model = app.models.resolve(addressed.model.as_deref()).ok()?;
    model.upstream().cloned()
}

/// Sends a request to an engine elsewhere, and returns its response as it arrives.
pub(super) async fn forward(
    app: &AppState,
    upstream: &Upstream,
    route: &'static str,
    request: RawRequest,
) -> Result<Response, AppError> {
    let ApiRequest { body, requester, memory } = request.parse::<Value>().await?;
    let Value::Object(mut fields) = body else { return Err(AppError::Internal) };
    let name = fields.get("model").and_then(Value::as_str).map(str::to_owned);
    resolve(app, name.as_deref(), &requester.record)?;
    fields.insert("model".to_owned(), upstream.facts().model.clone().into());
    fields.remove("number");
    set_cache_salt(&mut fields, upstream.separates_salts(), requester.client)?;
    let body = serde_json::to_vec(&fields).map_err(|_| AppError::Internal)?;
    drop((fields, memory));
    let deadline = Instant::from_std(requester.started + requester.time_max);
    let after_ms = u64::try_from(requester.time_max.as_millis()).unwrap_or(u64::MAX);
    let sending = timeout_at(deadline, upstream.forward(route, &body)).await;
    let response =
        sending.map_err(|_| EngineError::Deadline { after_ms })?.map_err(|error| failed(route, error))?;
    Ok(streamed(response, deadline, requester.record))
}

/// Replaces `cache_salt` by the client's salt: clients with different keys do not share cached prefixes, even if they
/// name the same salt. `is_known`: whether the engine knows the field; otherwise it gets one only if the client sends it.
fn set_cache_salt(fields: &mut Map<String, Value>, is_known: bool, client: Client) -> Result<(), AppError> {
    const FIELD: &str = "cache_salt";
    let text = match fields.remove(FIELD) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text).filter(|text| !text.is_empty()),
        Some(_) => return Err(AppError::field(FIELD, "must be a text")),
    };
    if !is_known && text.is_none() {
        return Ok(());
    }
    if let Some(salt) = salt_text(client.cache_salt(text.as_deref())) {
        fields.insert(FIELD.to_owned(), salt.into());
    }
    Ok(())
}

/// The error of an engine, which may lack newer routes.
fn failed(route: &'static str, error: UpstreamError) -> EngineError {
    match error {
        UpstreamError::Status { status: 404 | 405, .. } if route == RESPONSES => {
            EngineError::Unsupported(format!("the engine of this model has no route {RESPONSES}; use {CHAT}"))
        }
        error => error.into(),
    }
}

/// The response, read from the engine as fast as the client reads it.
fn streamed(response: Forwarded, deadline: Instant, record: Arc<RequestRecord>) -> Response {
    let content_type = response.content_type().unwrap_or_else(|| "application/json".to_owned());
    // An error in the middle closes the connection, so that the client does not take the beginning for the whole.
    let parts = futures::stream::unfold((response, record), move |(mut response, record)| async move {
        let part = match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(part)) => Ok(part?),
            Ok(Err(error)) => Err(std::io::Error::other(error)),
            Err(_) => Err(std::io::Error::other("the response took too long")),
        };
        Some((part.map(Bytes::from), (response, record)))
    });
    let headers = [(header::CACHE_CONTROL, "no-cache"), (NO_BUFFERING, "no")];
    let mut response = (headers, Body::from_stream(parts)).into_response();
    if let Ok(value) = content_type.try_into() {
        response.headers_mut().insert(header::CONTENT_TYPE, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_key_has_its_own_salt_and_engines_without_the_field_get_none() {
        let salt = |is_known, id, has_own_prefixes, given: Value| {
            let mut fields = Map::from_iter([("cache_salt".to_owned(), given)]);
            let result = set_cache_salt(&mut fields, is_known, Client { id, has_own_prefixes });
            result.map(|()| fields.remove("cache_salt").map(|salt| salt.as_str().map(str::to_owned)))
        };
        let sent = |id, given: Value| salt(true, id, true, given).unwrap().unwrap().unwrap();
        assert_ne!(sent(1, Value::Null), sent(2, Value::Null));
        assert_ne!(sent(1, json!("a")), sent(2, json!("a")));
        assert_ne!(sent(1, json!("a")), sent(1, Value::Null));
        assert_eq!(sent(1, json!("")), sent(1, Value::Null));
        assert_eq!(salt(true, 1, false, Value::Null).unwrap(), None, "all clients share");
        assert_eq!(salt(false, 1, true, Value::Null).unwrap(), None);
        assert_ne!(salt(false, 1, true, json!("a")).unwrap(), Some(Some("a".to_owned())));
        let error = salt(true, 1, true, json!(7)).unwrap_err();
        assert_eq!(error.to_string(), "`cache_salt` must be a text");
    }
}

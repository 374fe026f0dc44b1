//! Forwards requests for texts to the engine that computes their model, and passes its responses on as they
//! arrive. Another ntl-server also gets the requests for numbers.
//!
//! A number counts only once its whole response has arrived, so that a replica that fails changes no result.
//!
//! A request stays as it is, except that it keeps to the limits of this server, names the model as the engine
//! does, and has the `cache_salt` of its client. It waits in the queue, and counts as running until its
//! response has passed or its client is gone. Its tokens are those that the engine reports. Numbers of all
//! other engines come from our trees over their next-token probabilities.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use ntl_core::contract::EngineError;
use ntl_engine::EndReason;
use ntl_remote::wire::salt_text;
use ntl_remote::{EngineKind, Forwarded, TextTurn, Upstream, UpstreamError, estimated_tokens};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use super::body::{ApiRequest, RawRequest};
use super::resolve;
use super::stream::NO_BUFFERING;
use super::usage_reader::UsageReader;
use crate::apis::forwarded::{ForwardedRequest, Target, forwarded_request};
use crate::error::AppError;
use crate::paths::CHAT;
use crate::request::{Client, RequestRecord};
use crate::response_budget::{ReservedResponse, ResponseBudget, ResponseSize};
use crate::served::{RemoteTexts, ServedModel};
use crate::state::AppState;

/// The fields that decide who answers.
#[derive(Deserialize)]
struct Addressed {
    model: Option<String>,
    /// Any value but null and false requests a number.
    number: Option<Value>,
}

/// Returns the engine that a request is forwarded to, if its model is computed by one. The parser rejects a
/// malformed body later, with an error that names the field.
pub(super) fn remote_texts_of(app: &AppState, request: &RawRequest) -> Option<RemoteTexts> {
    if app.models.all().iter().all(|model| model.remote_texts().is_none()) {
        return None;
    }
    let addressed: Addressed = serde_json::from_slice(request.bytes()).ok()?;
    let is_number = addressed.number.is_some_and(|number| number != Value::Bool(false));
    let model = app.models.resolve(addressed.model.as_deref()).ok()?;
    let remote = model.remote_texts()?;
    // An engine does not know the calibrations of this server.
    let writes_numbers =
        remote.upstream.facts().kind == EngineKind::Ntl && model.profile.calibrations.is_empty();
    (writes_numbers || !is_number).then(|| remote.clone())
}

/// Returns whether the model of a request is computed by an engine whose answers are sampled.
pub(super) fn samples_answers(app: &AppState, request: &RawRequest) -> bool {
    if app.models.all().iter().all(|model| model.profile.sampling.is_none()) {
        return false;
    }
    let Ok(addressed) = serde_json::from_slice::<Addressed>(request.bytes()) else { return false };
    let model = app.models.resolve(addressed.model.as_deref());
    model.is_ok_and(|model| model.profile.sampling.is_some())
}

/// Sends a request to an engine elsewhere, and returns its response as it arrives.
pub(super) async fn forward(
    app: &AppState,
    remote: &RemoteTexts,
    route: &'static str,
    request: RawRequest,
) -> Result<Response, AppError> {
    let ApiRequest { body, requester, memory } = request.parse::<Value>().await?;
    let Value::Object(mut fields) = body else { return Err(AppError::Internal) };
    let name = fields.get("model").and_then(Value::as_str).map(str::to_owned);
    let model = resolve(app, name.as_deref(), &requester.record)?;
    requester.record.check_budget()?;
    let upstream = &remote.upstream;
    fields.insert("model".to_owned(), upstream.facts().model.clone().into());
    if let Some(Value::Null | Value::Bool(false)) = fields.get("number") {
        fields.remove("number");
    }
    set_cache_salt(&mut fields, upstream.separates_salts(), requester.client)?;
    let facts = upstream.facts();
    let target = Target { route, engine: facts.kind, chat_limit: facts.chat.map(|fields| fields.limit) };
    let request = forwarded_request(fields, target, &model.profile, &remote.fields)?;
    let ForwardedRequest { body, sequences, tokens_max, added_limit, hides_usage } = request;
    let wants_stream = body.get("stream") == Some(&Value::Bool(true));
    let needs_whole = body.contains_key("number") && !wants_stream;
    // Models of OpenAI that reason know only the newer name.
    let may_rename =
        route == CHAT && target.engine == EngineKind::OpenAi && added_limit == Some("max_tokens");
    let bodies = Bodies::new(body, added_limit, may_rename.then_some("max_completion_tokens"), needs_whole)?;
    drop(memory);
    let deadline = Instant::from_std(requester.started + requester.time_max);
    let after_ms = u64::try_from(requester.time_max.as_millis()).unwrap_or(u64::MAX);
    // A copy is sent.
    let bytes = 2 * bodies.size() as u64;
    let turn = remote.jobs.begin_text(requester.client.id, sequences, bytes);
    let Ok(turn) = timeout_at(deadline, turn).await else {
        return Err(EngineError::Deadline { after_ms }.into());
    };
    let mut turn = turn?;
    let mut unreported = Unreported {
        record: Arc::clone(&requester.record),
        prompt: estimated_tokens(bodies.limited.len()),
        // The first part of a stream comes before its first token.
        texts: if wants_stream { 0 } else { tokens_max },
    };
    let response = match timeout_at(deadline, bodies.send(upstream, route)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            if !error.may_have_computed() {
                unreported.prompt = 0;
            }
            if !error.is_timeout() {
                unreported.texts = 0;
            }
            turn.end(EndReason::Error);
            return Err(failed(route, error));
        }
        Err(_) => {
            turn.end(EndReason::Deadline);
            return Err(EngineError::Deadline { after_ms }.into());
        }
    };
    turn.release_memory();
    unreported.texts = 0;
    let is_stream = response.content_type().is_some_and(|kind| kind.starts_with("text/event-stream"));
    let usage = UsageReader::new(is_stream, hides_usage);
    let record = requester.record;
    let mut passing =
        Passing { response, usage, unreported, turn: Some(turn), model, record, deadline, held: None };
    passing.hold(&app.responses, requester.client.id).await?;
    Ok(passing.into_response())
}

fn to_json(fields: &Map<String, Value>) -> Result<Vec<u8>, AppError> {
    serde_json::to_vec(fields).map_err(|_| AppError::Internal)
}

/// The body of a request, and the one that is sent if the engine rejects the limit of tokens that the server
/// added.
struct Bodies {
    limited: Vec<u8>,
    other: Option<Vec<u8>>,
    /// Whether the response is passed on only once it is complete, and otherwise as it arrives.
    needs_whole: bool,
}

impl Bodies {
    /// The other body has no limit, or `other_limit`, which the engine may know instead.
    fn new(
        mut fields: Map<String, Value>,
        added_limit: Option<&str>,
        other_limit: Option<&str>,
        needs_whole: bool,
    ) -> Result<Self, AppError> {
        let limited = to_json(&fields)?;
        let limit = added_limit.and_then(|name| fields.remove(name));
        let other = match limit {
            Some(limit) => {
                if let Some(name) = other_limit {
                    fields.insert(name.to_owned(), limit);
                }
                Some(to_json(&fields)?)
            }
            None => None,
        };
        Ok(Self { limited, other, needs_whole })
    }

    /// The size of both, in bytes.
    fn size(&self) -> usize {
        self.limited.len() + self.other.as_ref().map_or(0, Vec::len)
    }

    /// Sends the body. If the engine rejects its limit, that may exceed the room after the prompt. Then the
    /// room is smaller than the limit, and the engine keeps to it by itself.
    async fn send(&self, upstream: &Upstream, route: &'static str) -> Result<Forwarded, UpstreamError> {
        match (self.send_one(upstream, route, &self.limited).await, &self.other) {
            (Err(UpstreamError::Rejected { message, .. }), Some(other)) if is_about_limit(&message) => {
                self.send_one(upstream, route, other).await
            }
            (response, _) => response,
        }
    }

    async fn send_one(
        &self,
        upstream: &Upstream,
        route: &'static str,
        body: &[u8],
    ) -> Result<Forwarded, UpstreamError> {
        if self.needs_whole {
            upstream.forward_whole(route, body, is_complete).await
        } else {
            upstream.forward(route, body).await
        }
    }
}

/// Returns whether an engine's message may say that a limit of tokens is too large, or that it knows the
/// limit by another name.
fn is_about_limit(message: &str) -> bool {
    const WORDS: [&str; 8] =
        ["context", "length", "too large", "too long", "too many", "exceed", "max_", "maximum"];
    let message = message.to_lowercase();
    WORDS.iter().any(|word| message.contains(word))
}

/// Returns whether the body of a response has texts, and all of them have ended.
fn is_complete(response: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Answer {
        Choices { choices: Vec<Choice> },
        Response { output: Vec<IgnoredAny>, status: String },
    }
    #[derive(Deserialize)]
    struct Choice {
        finish_reason: Option<String>,
    }
    match serde_json::from_str(response) {
        Ok(Answer::Choices { choices }) => {
            !choices.is_empty() && choices.iter().all(|choice| choice.finish_reason.is_some())
        }
        Ok(Answer::Response { output, status }) => !output.is_empty() && !status.is_empty(),
        Err(_) => false,
    }
}

/// Replaces `cache_salt` by the client's salt: clients with different keys do not share cached prefixes, even
/// if they name the same salt. `is_known`: whether the engine knows the field; otherwise it gets one only if
/// the client sends it.
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

/// The error of an engine, which may lack newer routes. The client knows the field that it names.
fn failed(route: &'static str, error: UpstreamError) -> AppError {
    let message = error.to_string();
    match error {
        UpstreamError::Status { status: 404 | 405, .. } if route != CHAT => {
            let message = format!("the engine of this model has no route {route}; use {CHAT}");
            EngineError::Unsupported(message).into()
        }
        UpstreamError::Rejected { param: Some(param), .. } => {
            AppError::Invalid { message, param: Some(param) }
        }
        error => EngineError::from(error).into(),
    }
}

/// The tokens of a request whose engine has not reported them yet. If it never does, because the client is
/// gone, the time is over or the engine does not count, the quota of the client counts these.
struct Unreported {
    record: Arc<RequestRecord>,
    /// An estimate.
    prompt: u64,
    /// The limit of the texts, until the response begins.
    texts: u64,
}

impl Drop for Unreported {
    fn drop(&mut self) {
        let tokens = self.prompt.saturating_add(self.texts);
        self.record.use_quota(tokens);
        self.record.use_budget(tokens);
    }
}

/// A response that passes from the engine to the client. Its tokens are counted when it is dropped.
struct Passing {
    response: Forwarded,
    usage: UsageReader,
    unreported: Unreported,
    /// `None` once the response has ended.
    turn: Option<TextTurn>,
    model: Arc<ServedModel>,
    record: Arc<RequestRecord>,
    deadline: Instant,
    /// The memory of a response that has arrived as a whole.
    held: Option<ReservedResponse>,
}

impl Passing {
    /// Reserves the memory of a response that has arrived as a whole. If there is not enough, its tokens
    /// count nevertheless.
    async fn hold(&mut self, responses: &Arc<ResponseBudget>, client: u64) -> Result<(), AppError> {
        let Some(bytes) = self.response.held_bytes() else { return Ok(()) };
        match responses.reserve(client, ResponseSize { bytes, fields: Vec::new() }) {
            Ok(held) => {
                self.held = Some(held);
                Ok(())
            }
            Err(error) => {
                drop(self.next().await);
                self.end(EndReason::Error);
                Err(error)
            }
        }
    }

    /// The response, read from the engine as fast as the client reads it.
    fn into_response(self) -> Response {
        let content_type = self.response.content_type().unwrap_or_else(|| "application/json".to_owned());
        // An error in the middle closes the connection, so that the client does not take the beginning for
        // the whole.
        let parts = futures::stream::unfold(self, |mut passing| async move {
            let part = passing.next().await?;
            Some((part.map(Bytes::from), passing))
        });
        let headers = [(header::CACHE_CONTROL, "no-cache"), (NO_BUFFERING, "no")];
        let mut response = (headers, Body::from_stream(parts)).into_response();
        if let Ok(value) = content_type.try_into() {
            response.headers_mut().insert(header::CONTENT_TYPE, value);
        }
        response
    }

    async fn next(&mut self) -> Option<std::io::Result<Vec<u8>>> {
        while self.turn.is_some() {
            match timeout_at(self.deadline, self.response.chunk()).await {
                Ok(Ok(Some(part))) => {
                    let passed = self.usage.pass(part);
                    if !passed.is_empty() {
                        return Some(Ok(passed));
                    }
                }
                Ok(Ok(None)) => {
                    let has_length = self.usage.has_length();
                    self.end(if has_length { EndReason::Length } else { EndReason::Stop });
                    let rest = self.usage.rest();
                    return (!rest.is_empty()).then_some(Ok(rest));
                }
                Ok(Err(error)) => {
                    self.end(EndReason::Error);
                    return Some(Err(std::io::Error::other(error)));
                }
                Err(_) => {
                    self.end(EndReason::Deadline);
                    return Some(Err(std::io::Error::other("the response took too long")));
                }
            }
        }
        None
    }

    fn end(&mut self, reason: EndReason) {
        if let Some(turn) = self.turn.take() {
            turn.end(reason);
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if self.usage.is_reported() {
            self.unreported.prompt = 0;
        }
        let (prompt, completion) = self.usage.tokens();
        self.model.count_tokens(&self.record, prompt, completion);
        self.record.use_budget(prompt.saturating_add(completion));
    }
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

//! `POST /v1/chat/completions`: the checkpoint's chat template turns the conversation into a prompt.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{ChatRequest, ChatResponse, StreamEvent};
use serde_json::Value;

use super::body::{ApiRequest, RawRequest};
use super::forward::{forward, remote_texts_of, samples_answers};
use super::{generation, resolve};
use crate::apis::chat::{ChatAnswers, conversation, echoed, generation_request, tool_offer};
use crate::apis::sampled::sampled_number;
use crate::error::AppError;
use crate::paths::CHAT;
use crate::state::AppState;

/// Continues a conversation, with the checkpoint's chat template.
///
/// With `stream`, the response consists of server-sent events: chunks, then `[DONE]`.
#[utoipa::path(post, path = CHAT, tag = "completions", request_body = ChatRequest, responses(
    (status = 200, description = "The answers", content(
        (ChatResponse = "application/json"),
        (StreamEvent = "text/event-stream"),
    )),
    AppError,
))]
pub(crate) async fn complete(State(app): State<AppState>, request: RawRequest) -> Result<Response, AppError> {
    if let Some(remote) = remote_texts_of(&app, &request) {
        return forward(&app, &remote, CHAT, request).await;
    }
    if samples_answers(&app, &request) {
        return sampled(&app, request).await;
    }
    computed(&app, request).await
}

/// Answers with texts or numbers from the probabilities of tokens.
async fn computed(app: &AppState, request: RawRequest) -> Result<Response, AppError> {
    let ApiRequest { mut body, requester, memory } = request.parse::<ChatRequest>().await?;
    let model = resolve(app, body.model.as_deref(), &requester.record)?;
    let tools = tool_offer(&mut body)?;
    let conversation = conversation(&mut body, tools.as_ref(), &model.profile)?;
    let echoed = echoed(&body, &conversation)?;
    let special_tokens = body.add_special_tokens.unwrap_or(false);
    let client = requester.client.id;
    let prompt = generation::chat_prompt(&model, client, "messages", conversation, special_tokens).await?;
    let room = model.room_after(prompt.len());
    let (request, number) = generation_request(body, prompt, tools.as_ref(), room, &model.profile)?;
    let writer = ChatAnswers::new(&model, request.report, number, echoed);
    generation::answer(&model, requester, request, memory, writer).await
}

/// Answers with a number from sampled answers.
async fn sampled(app: &AppState, request: RawRequest) -> Result<Response, AppError> {
    let ApiRequest { body, requester, memory } = request.parse::<Value>().await?;
    let Value::Object(fields) = body else { return Err(AppError::Internal) };
    let name = fields.get("model").and_then(Value::as_str).map(str::to_owned);
    let model = resolve(app, name.as_deref(), &requester.record)?;
    let remote = model.remote_texts().ok_or(AppError::Internal)?;
    let mut sampled = sampled_number(fields, &model.profile, &remote.fields)?;
    let writer = ChatAnswers::new(&model, sampled.request.report, sampled.number.take(), None);
    generation::answer_chat(&model, requester, sampled, memory, writer).await
}

//! `POST /v1/responses`: chats in OpenAI's newer form, without stored responses.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{NamedStreamEvent, ResponsesRequest, ResponsesResponse};

use super::body::{ApiRequest, RawRequest};
use super::forward::{forward, remote_texts_of};
use super::{generation, resolve};
use crate::apis::responses::{
    ResponseAnswers, check_fields, conversation, generation_request, settings, tool_offer,
};
use crate::error::AppError;
use crate::paths::RESPONSES;
use crate::state::AppState;

/// Responds to a conversation, with the checkpoint's chat template. Nothing is stored.
///
/// With `stream`, the response consists of named server-sent events, from `response.created` to
/// `response.completed`, `response.incomplete` or `response.failed`.
#[utoipa::path(post, path = RESPONSES, tag = "completions", request_body = ResponsesRequest, responses(
    (status = 200, description = "The response", content(
        (ResponsesResponse = "application/json"),
        (NamedStreamEvent = "text/event-stream"),
    )),
    AppError,
))]
pub(crate) async fn respond(State(app): State<AppState>, request: RawRequest) -> Result<Response, AppError> {
    if let Some(remote) = remote_texts_of(&app, &request) {
        return forward(&app, &remote, RESPONSES, request).await;
    }
    let ApiRequest { mut body, requester, memory } = request.parse::<ResponsesRequest>().await?;
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    check_fields(&body)?;
    let tools = tool_offer(&body)?;
    let conversation = conversation(&mut body, tools.as_ref(), &model.profile)?;
    let prompt = generation::chat_prompt(&model, requester.client.id, "input", conversation, false).await?;
    let room = model.room_after(prompt.len());
    let (request, number) = generation_request(&body, prompt, tools.as_ref(), room, &model.profile)?;
    let writer = ResponseAnswers::new(&model, request.report, number, settings(&body));
    generation::answer(&model, requester, request, memory, writer).await
}

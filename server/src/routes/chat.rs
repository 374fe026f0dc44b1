//! `POST /v1/chat/completions`: a conversation becomes a prompt by the checkpoint's template, then it is a completion.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use ntl_api::{ChatRequest, ChatResponse, StreamEvent};

use super::completions;
use crate::client::Client;
use crate::convert;
use crate::error::AppError;
use crate::extract::ApiJson;
use crate::reply::Head;
use crate::routes::CHAT;
use crate::state::AppState;
use crate::track::ModelLabel;

/// The answer to a conversation, by the checkpoint's own template.
///
/// With `stream`, server-sent events of chunks, `[DONE]` last.
#[utoipa::path(post, path = CHAT, tag = "completions", request_body = ChatRequest, responses(
    (status = 200, description = "The answers", content(
        (ChatResponse = "application/json"),
        (StreamEvent = "text/event-stream"),
    )),
    AppError,
))]
pub(crate) async fn complete(
    State(app): State<AppState>,
    Extension(label): Extension<ModelLabel>,
    client: Client,
    ApiJson(request): ApiJson<ChatRequest>,
) -> Result<Response<Body>, AppError> {
    let model = app.models.resolve(request.model.as_deref(), &label)?;
    let prompt = model.chat_ids(convert::conversation(&request)?).await?;
    let room = model.info().context_tokens_max.map(|max| max.saturating_sub(prompt.len()));
    let rules = model.rules(&app.settings);
    let (completion, writer) = convert::chat_completion(request, prompt, room, &rules)?;
    completions::answer(&app, &model, (completion, client), Head::chat(&model, writer)).await
}

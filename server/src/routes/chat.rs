//! `POST /v1/chat/completions`: the checkpoint's chat template makes a prompt of the conversation.

use axum::extract::{Extension, State};
use axum::response::Response;
use ntl_api::{ChatRequest, ChatResponse, StreamEvent};
use ntl_models::tokenizer::Tokenizer;

use super::body::ApiJson;
use super::client::Client;
use super::{generation, resolve};
use crate::adapters::chat::{ChatAnswers, conversation, generation_request, prompt_ids};
use crate::error::AppError;
use crate::middleware::track::ModelLabel;
use crate::paths::CHAT;
use crate::state::AppState;

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
    ApiJson(mut request, share): ApiJson<ChatRequest>,
) -> Result<Response, AppError> {
    let model = resolve(&app, request.model.as_deref(), &label)?;
    let conversation = conversation(&mut request)?;
    let profile = model.profile(&app.settings);
    // A template is a program: it never runs on a thread of the runtime, however short the messages are.
    let render = move |tokenizer: &Tokenizer| prompt_ids(&conversation, tokenizer, &profile);
    let prompt = model.with_tokenizer(usize::MAX, render).await?;
    let room = model.info().context_tokens_max.map(|max| max.saturating_sub(prompt.len()));
    let (request, number) = generation_request(request, prompt, room, &model.profile(&app.settings))?;
    let adapter = ChatAnswers::new(&model, &request, number);
    generation::answer(&app, &model, client, request, share, adapter).await
}

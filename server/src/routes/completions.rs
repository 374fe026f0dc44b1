//! `POST /v1/completions`: texts or numbers, in one body or as a stream.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{CompletionRequest, CompletionResponse, StreamEvent};

use super::body::{ApiRequest, RawRequest};
use super::forward::{forward, remote_texts_of};
use super::{generation, resolve};
use crate::apis::completions::{CompletionAnswers, generation_request};
use crate::error::AppError;
use crate::paths::COMPLETIONS;
use crate::state::AppState;

/// Texts or numbers that continue a prompt.
///
/// With `stream`, the response consists of server-sent events: chunks of the same shape, then `[DONE]`.
#[utoipa::path(post, path = COMPLETIONS, tag = "completions", request_body = CompletionRequest, responses(
    (status = 200, description = "The answers", content(
        (CompletionResponse = "application/json"),
        (StreamEvent = "text/event-stream"),
    )),
    AppError,
))]
pub(crate) async fn complete(State(app): State<AppState>, request: RawRequest) -> Result<Response, AppError> {
    if let Some(remote) = remote_texts_of(&app, &request) {
        return forward(&app, &remote, COMPLETIONS, request).await;
    }
    let ApiRequest { body, requester, memory } = request.parse::<CompletionRequest>().await?;
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    model.profile.check_tokens()?;
    let (request, number) = generation_request(body, &model.profile)?;
    let writer = CompletionAnswers::new(&model, request.report, number);
    generation::answer(&model, requester, request, memory, writer).await
}

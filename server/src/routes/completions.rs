//! `POST /v1/completions`: texts or numbers, at once or as a stream.

use axum::extract::{Extension, State};
use axum::response::Response;
use ntl_api::{CompletionRequest, CompletionResponse, StreamEvent};

use super::body::ApiJson;
use super::client::Client;
use super::{generation, resolve};
use crate::adapters::completions::{CompletionAnswers, generation_request};
use crate::error::AppError;
use crate::middleware::track::ModelLabel;
use crate::paths::COMPLETIONS;
use crate::state::AppState;

/// Texts or numbers that continue a prompt.
///
/// With `stream`, server-sent events of the same shape, `[DONE]` last.
#[utoipa::path(post, path = COMPLETIONS, tag = "completions", request_body = CompletionRequest, responses(
    (status = 200, description = "The answers", content(
        (CompletionResponse = "application/json"),
        (StreamEvent = "text/event-stream"),
    )),
    AppError,
))]
pub(crate) async fn complete(
    State(app): State<AppState>,
    Extension(label): Extension<ModelLabel>,
    client: Client,
    ApiJson(request, share): ApiJson<CompletionRequest>,
) -> Result<Response, AppError> {
    let model = resolve(&app, request.model.as_deref(), &label)?;
    let (request, number) = generation_request(request, &model.profile(&app.settings))?;
    let adapter = CompletionAnswers::new(&model, &request, number);
    generation::answer(&app, &model, client, request, share, adapter).await
}

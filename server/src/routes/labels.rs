//! `POST /generative_scoring`, and the requests of `POST /v1/score` that have labels.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{LabelRequest, LabelScores};
use ntl_core::contract::Job;

use super::body::ApiRequest;
use super::resolve;
use crate::answer::TokenCounts;
use crate::apis::labels::{LabelForm, label_request};
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::GENERATIVE_SCORING;
use crate::request::labels_size;
use crate::state::AppState;

/// The probability of the first of several labels, which are tokens, after each of several prompts.
#[utoipa::path(post, path = GENERATIVE_SCORING, tag = "completions", request_body = LabelRequest, responses(
    (status = 200, description = "The probability for each item", body = LabelScores),
    AppError,
))]
pub(crate) async fn generative_scoring(
    State(app): State<AppState>,
    request: ApiRequest<LabelRequest>,
) -> Result<Response, AppError> {
    respond(&app, request, LabelForm::Vllm).await
}

pub(super) async fn respond(
    app: &AppState,
    ApiRequest { body, requester, memory }: ApiRequest<LabelRequest>,
    form: LabelForm,
) -> Result<Response, AppError> {
    let model = resolve(app, body.model.as_deref(), &requester.record)?;
    let cache_salt = requester.client.cache_salt(body.cache_salt.as_deref());
    let (prompts, labels) = label_request(body, form, model.info(), &model.profile)?;
    let bytes = prompts.text_bytes();
    let prompts = model
        .with_tokenizer(requester.client.id, bytes, |tokenizer, profile| {
            prompts.into_prompts(tokenizer, profile)
        })
        .await?;
    let reserved = memory.into_response(labels_size(prompts.len(), labels.len()))?;
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len()).sum();
    let request = labels.request();
    let jobs =
        prompts.into_iter().map(|prompt| Job { cache_salt, ..Job::new(prompt, request.clone()) }).collect();
    let mut events = model.submit("items", jobs, requester)?;
    let outcomes = events.scores().await?;
    let tokens =
        TokenCounts { prompt: prompt_tokens, completion: outcomes.len(), engine: events.engine_work() };
    json_body::respond(reserved, move || match form {
        LabelForm::Vllm => JsonBody::of(&labels.first(&outcomes, &model.name, tokens)),
        LabelForm::Sglang => JsonBody::of(&labels.all(&outcomes, &model.name, tokens)),
    })
    .await
}
